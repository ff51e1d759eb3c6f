package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// server is a host whose engine a test may kill.
type server struct{ *host }

// eventually reports what is still wrong after a while. Engines work on after their commands have
// returned.
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = wrong(); last == "" {
			return
		}
	}
	t.Error(last)
}

// setRuntime makes berth's wrapper use a runtime.
func (s server) setRuntime(t *testing.T, runtime string) {
	t.Helper()
	s.do(t, "sed", "-i", "s|^runtime = .*|runtime = '"+runtime+"'|", "/etc/berth/config.toml")
}

// gpuNames returns the GPUs of the host by UUID: "nvidia3".
func (s server) gpuNames(t *testing.T) map[string]string {
	t.Helper()
	var node struct {
		Devices []struct {
			UUID  string
			Minor int
		}
	}
	rig.Must(t, json.Unmarshal([]byte(s.do(t, shared.Berth, "gpus", "--json")), &node))
	names := map[string]string{}
	for _, d := range node.Devices {
		names[d.UUID] = fmt.Sprintf("nvidia%d", d.Minor)
	}
	return names
}

// heldGPUs returns the GPUs of each container, by its live leases.
func (s server) heldGPUs(t *testing.T) map[string][]string {
	t.Helper()
	names, held := s.gpuNames(t), map[string][]string{}
	for _, l := range s.live(t) {
		for _, d := range l.Devices {
			held[l.Owner.Container] = append(held[l.Owner.Container], names[d.UUID])
		}
		slices.Sort(held[l.Owner.Container])
	}
	return held
}

// waitForHeld waits until each container, by its id, holds so many GPUs, and no other container holds
// any. No GPU may be held twice.
func (s server) waitForHeld(t *testing.T, want map[string]int) {
	t.Helper()
	eventually(t, func() string {
		got, twice := map[string]int{}, map[string]bool{}
		for id, gpus := range s.heldGPUs(t) {
			got[id] = len(gpus)
			for _, g := range gpus {
				if twice[g] {
					t.Errorf("%s is held twice", g)
				}
				twice[g] = true
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return "GPUs held by containers (-want +got):\n" + diff
		}
		return ""
	})
}

// waitUntilFree waits until there is no lease, not even of an ended holder, and no leftover of containers.
func (s server) waitUntilFree(t *testing.T, before []string) {
	t.Helper()
	eventually(t, func() string {
		if left := s.leases(t); len(left) > 0 {
			return fmt.Sprintf("leases are left: %+v", left)
		}
		return diffOf("left on the host (-before +after):\n", before, s.footprint(t))
	})
}

func diffOf(what string, want, got []string) string {
	if diff := cmp.Diff(want, got); diff != "" {
		return what + diff
	}
	return ""
}

// probeCommands is a file in the image with commands for the probe: it tries each GPU by the container's own
// node, and by the host's at /nodes.
func probeCommands() string {
	var commands strings.Builder
	for i := range 8 {
		fmt.Fprintf(&commands, "open /dev/nvidia%d\nopen /nodes/nvidia%d\n", i, i)
	}
	return commands.String()
}

// runProbe runs the probe by an engine's command for a process in a container, and returns the GPUs
// that it can open by its own nodes, and by the host's.
func (s server) runProbe(t *testing.T, words ...string) (own, all []string) {
	t.Helper()
	answers := s.do(t, append(words, "/probe", "/look")...)
	own, all = parseProbe(answers)
	if len(own) == 0 {
		t.Logf("%v: the probe answers %q", words, answers) // nothing opens, or the output is lost
	}
	return own, all
}

// parseProbe parses the probe's answers to look.
func parseProbe(answers string) (own, all []string) {
	for i, answer := range slices.DeleteFunc(strings.Fields(strings.ReplaceAll(answers, " ", "_")), func(s string) bool { return s == "." }) {
		if answer != "ENXIO_ENXIO_ENXIO" {
			continue // see opens
		}
		name := fmt.Sprintf("nvidia%d", i/2)
		if i%2 == 0 {
			own = append(own, name)
		} else {
			all = append(all, name)
		}
	}
	return own, all
}

// askProbe sends commands to a probe that is started by these arguments; each has one line of answer.
func (s server) askProbe(t *testing.T, commands []string, words ...string) (answers []string) {
	t.Helper()
	cmd := s.command(words...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%v: %v: %s%s", words, err, out, exit.Stderr)
	}
	rig.Must(t, err)
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "." {
			answers = append(answers, line)
		}
	}
	if len(answers) != len(commands) {
		t.Fatalf("%v: answers %q", words, answers)
	}
	return answers
}

// startDaemon starts a daemon whose process id is in a file of the host.
func (s server) startDaemon(t *testing.T, words ...string) {
	t.Helper()
	s.daemon(t, append([]string{"sh", "-c", `echo $$ >"/run/$0.test"; exec "$0" "$@"`}, words...)...)
}

// killDaemon kills a daemon of spawn with SIGKILL, and waits for its end.
func (s server) killDaemon(t *testing.T, name string) {
	t.Helper()
	s.kill(t, strings.TrimSpace(s.do(t, "cat", "/run/"+name+".test")))
}

// kill kills a process of the host, and waits for its end.
func (s server) kill(t *testing.T, pid string) {
	t.Helper()
	s.do(t, "sh", "-c", "kill -9 $0", pid)
	eventually(t, func() string {
		state := s.run(t, "grep", "^State:", "/proc/"+pid+"/status").out
		if state == "" || strings.Contains(state, "Z") {
			return ""
		}
		return fmt.Sprintf("process %s doesn't end: %s", pid, state)
	})
}

// takeGPUs leases so many GPUs for another process, until the returned function is called.
func (s server) takeGPUs(t *testing.T, gpus int) (release func()) {
	t.Helper()
	return s.startAlloc(t, gpus)(t)
}

// startAlloc starts a berth alloc of so many GPUs. The returned function waits until it has them, and
// returns a function that releases them.
func (s server) startAlloc(t *testing.T, gpus int, flags ...string) func(*testing.T) (release func()) {
	t.Helper()
	cmd := s.command(slices.Concat([]string{shared.Berth, "alloc"}, flags, []string{strconv.Itoa(gpus), "--", "cat"})...)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	_, err = in.Write([]byte("x"))
	rig.Must(t, err)
	return func(t *testing.T) func() {
		t.Helper()
		if n, err := out.Read(make([]byte, 1)); n != 1 {
			t.Errorf("%d GPUs can't be taken: %v", gpus, err)
		}
		return func() {
			t.Helper()
			_ = in.Close() // it may have ended
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
}
