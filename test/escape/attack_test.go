package escape

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// attack is one attempt to get out of a container, or to get at others' devices and files.
type attack struct {
	name  string
	class string // the known vulnerability that it represents
	// build prepares the attacker's image and the engine's spec.
	build func(s *scene)
	// gained returns what the attacker has gained, "" for nothing.
	gained func(s *scene) string
	// not says where the attack is impossible, and why: by an entry point, a runtime, or both
	// ("hook", "runc", "naive runc", "engine" for each of them, "old engine", "docker", "docker
	// v2").
	not map[string]string
}

// attacks returns all attacks.
func attacks() []attack {
	return slices.Concat(loaderAttacks(), programAttacks(), linkAttacks(), readAttacks(), sourceAttacks(), forgedRequests(), gatedFeatures(), deviceRuleAttacks(), sharedFileAttacks(), hostBindAttacks(), raceAttacks())
}

// impossible returns the reason why an attack can't be made through an entry point of a world.
func (a attack) impossible(w *world, entryPoint string) string {
	keys := []string{entryPoint, w.runtime, w.cgroup, entryPoint + " " + w.runtime, w.runtime + " " + w.cgroup}
	if w.engine != nil {
		keys = append(keys, "engine", w.engine.name, w.engine.name+" "+w.cgroup, entryPoint+" "+w.engine.name)
		if w.engine.old {
			keys = append(keys, "old engine")
		}
	}
	for _, key := range keys {
		if why := a.not[key]; why != "" {
			return key + ": " + why
		}
	}
	return ""
}

// TestAttacks checks that every attack works on the naive injector and fails on berth.
func TestAttacks(t *testing.T) {
	eachWorld(t, func(t *testing.T, number int, w *world) {
		for i, a := range attacks() {
			if !*everywhere && i%4 != number {
				continue
			}
			t.Run(a.name, func(t *testing.T) {
				for _, entryPoint := range []string{"naive", "wrapper", "hook"} {
					t.Run(entryPoint, func(t *testing.T) { a.run(t, w, entryPoint) })
				}
			})
		}
	})
}

// TestWithoutAttack is the other control: a harmless container starts, and has exactly what it was
// given. Without this, attacks would also fail if no container started.
func TestWithoutAttack(t *testing.T) {
	eachWorld(t, func(t *testing.T, _ int, w *world) {
		for _, entryPoint := range []string{"naive", "wrapper", "hook"} {
			t.Run(entryPoint, func(t *testing.T) {
				s := newScene(t, w, entryPoint)
				s.addCommand("open /dev/nvidia0")
				s.play()
				if s.said.Code != 0 || s.answers["open /dev/nvidia0"] != "ENXIO" {
					t.Errorf("it doesn't get its device: %s", s)
				}
				if gained := s.checkAll(); gained != "" && entryPoint != "naive" {
					t.Error(gained)
				}
			})
		}
	})
}

func (a attack) run(t *testing.T, w *world, entryPoint string) {
	noteResult(tally.tried, a.name)
	if why := a.impossible(w, entryPoint); why != "" {
		noteResult(tally.without, fmt.Sprintf("%s: not %s", a.name, why))
		return
	}
	s := newScene(t, w, entryPoint)
	a.build(s)
	if w.engine != nil {
		if _, why := s.options(); why != "" {
			noteResult(tally.without, fmt.Sprintf("%s: not %s by %s: %s", a.name, entryPoint, w.engine.name, why))
			return
		}
	}
	s.play()
	gained := a.gained(s)
	if entryPoint == "naive" {
		if gained == "" {
			noteResult(tally.failed, a.name)
			t.Errorf("%s: it doesn't work on the naive injector: %s", a.class, s)
		}
		return
	}
	if gained == "" {
		gained = s.checkAll()
	}
	if gained != "" {
		noteResult(tally.worked, a.name)
		t.Errorf("%s: %s: %s", a.class, gained, s)
		return
	}
	t.Log(s)
}

// noteResult records a result of an attack.
func noteResult(set map[string]bool, name string) {
	tally.Lock()
	defer tally.Unlock()
	set[name] = true
}

// fileWasChanged returns a gain if a file of the host was changed.
func fileWasChanged(s *scene) string {
	if d := diff(s.before, list(s.t, s.outside)); d != "" {
		return "a file of the host was changed: " + d
	}
	return ""
}

// programRan returns a gain if a program of the image ran on the host.
func programRan(s *scene) string {
	if _, err := os.Stat(s.mark); err == nil {
		return "something of the image was run outside of it"
	}
	return ""
}

// fileWasRead returns a gain if a file of the host was read inside.
func fileWasRead(s *scene) string {
	for command, answer := range s.answers {
		if strings.Contains(answer, s.secret) {
			return command + " shows a file of the host"
		}
	}
	return ""
}

// deviceWasOpened returns a gain if a device of another container was opened. A device without a driver
// answers ENXIO where the rules allow the open; rdma_cm answers ENODEV.
func deviceWasOpened(s *scene) string {
	for command, answer := range s.answers {
		if s.foreign[command] && (answer == "ok" || answer == "ENXIO" || answer == "ENODEV") {
			return command + ": " + answer
		}
	}
	return ""
}

// startHung returns a gain if the start hung, crashed, or exhausted the memory.
func startHung(s *scene) string {
	const lots = 512 << 10 // KiB
	says := func(text string) bool { return strings.Contains(s.said.Err, text) }
	switch {
	case s.timedOut() || says("naive: it hangs"):
		return "it hangs"
	case s.said.Code == 2 || says("goroutine ") || says("exit status 2"): // in the words of engines
		return "it falls over"
	case s.memory > lots:
		return fmt.Sprintf("it takes %d MiB", s.memory>>10)
	}
	return ""
}

// checkAll checks for every gain, whatever the attack aims at.
func (s *scene) checkAll() string {
	for _, look := range []func(*scene) string{fileWasChanged, programRan, fileWasRead, deviceWasOpened, startHung} {
		if gained := look(s); gained != "" {
			return gained
		}
	}
	return ""
}
