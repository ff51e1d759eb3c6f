package escape

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// createByEngine makes the engine create the container of the attacker's image.
func (s *scene) createByEngine() {
	s.t.Helper()
	log := filepath.Join(s.w.share, "naive.log")
	s.runCommand(os.RemoveAll(log))
	defer s.load()()
	s.said = s.attempt(s.w.Command("timeout", append([]string{"--kill-after=5", "60"}, s.run()...)...))
	if said, err := os.ReadFile(log); err == nil { // engines print only a part of it
		s.said.Err += string(said)
	}
	if s.timedOut() {
		remove := append(slices.Clone(s.w.engine.remove), s.id)
		s.w.Run(s.t, s.w.Command(remove[0], remove[1:]...))
	}
}

// timedOut reports whether timeout(1) has ended the command, or died with it.
func (s *scene) timedOut() bool {
	return s.said.Code == 124 || s.said.Code == 137 || s.said.Code == -1
}

// name of the image.
func (s *scene) name() string { return "localhost/" + s.id + ":latest" }

// load gives the image to the engine, and the entry point's program and configuration to the host.
// undo removes the image.
func (s *scene) load() (undo func()) {
	s.t.Helper()
	s.naively = append(s.naively, "--patience", s.timeLimit()+"s")
	words := s.naive()
	words[0] = s.w.self() // where the host sees it
	s.write(s.w.program("naive"), "#!/bin/sh\nexec '"+strings.Join(words, "' '")+"' \"$@\" 2>>"+filepath.Join(s.w.share, "naive.log")+"\n")
	s.runCommand(os.Chmod(s.w.program("naive"), 0o755))
	s.write(s.w.Path("/etc/berth/config.toml"), fmt.Sprintf("runtime = %q\nberth = %q\n%s", s.w.runtime, s.w.Berth, s.admin()))
	e := s.w.engine
	load := append(slices.Clone(e.load), s.archive())
	s.w.Do(s.t, load[0], load[1:]...)
	return func() {
		unload := append(slices.Clone(e.unload), s.name())
		s.w.Do(s.t, unload[0], unload[1:]...)
	}
}

// admin returns the policy in the configuration. podman's user requests by an annotation, which has
// to be allowed.
func (s *scene) admin() string {
	policy := s.policy
	if policy == "" {
		policy = "[policy]\n"
	}
	if s.w.engine.name == "podman" && s.request != "" {
		policy += "podman_annotation = true\n"
	}
	return policy
}

// run returns the command of the engine's user.
func (s *scene) run() []string {
	options, _ := s.options()
	return s.w.engine.run(s.w, s.w.program(s.entryPoint), s.id, options, s.name())
}

// options returns the engine's options for the user's request and for the attack's changes of the
// spec, without those that the image brings. not is the reason if there are no such options.
func (s *scene) options() (words []string, not string) {
	request, not := s.requested()
	if not != "" {
		return nil, not
	}
	plain := s.engine()
	switch {
	case s.between != nil:
		return nil, "its update takes no device rules"
	case len(s.spec.Mounts) < len(plain.Mounts):
		return nil, "it mounts /proc and /dev itself, always"
	case len(s.spec.Annotations) > 0 && len(s.spec.Process.Env) == len(plain.Process.Env) && !s.w.engine.copies:
		return nil, "an image's annotations don't reach the runtime"
	}
	rules, not := s.rules(s.spec.Linux.Resources.Devices)
	if not != "" {
		return nil, not
	}
	words = slices.Concat(request, s.w.engine.mounts(s.spec.Mounts[len(plain.Mounts):]), rules)
	for _, name := range s.spec.Process.Capabilities.Bounding[len(plain.Process.Capabilities.Bounding):] {
		words = append(words, "--cap-add", name)
	}
	if len(s.spec.Linux.Namespaces) < len(plain.Linux.Namespaces) && s.w.engine.name != "containerd" {
		words = append(words, "--cgroupns", "host")
	}
	return words, ""
}

// requested returns the engine's options for a request of devices.
func (s *scene) requested() (words []string, not string) {
	key, text := "berth.gpus", s.request
	switch s.entryPoint {
	case "hook":
		number, one := strings.CutPrefix(text, "device=")
		switch {
		case text == "":
			return nil, "nothing calls the hook"
		case !one || len(number) != 1:
			return nil, "a CDI device's name can't say so, by which the hook is asked"
		}
		return []string{"--device", "berth/gpus=gpu" + number}, s.w.engine.noCDI
	case "naive":
		key = naiveRequest
	}
	if text == "" {
		return nil, ""
	}
	annotation := key + "=" + text
	if s.w.engine.copies {
		annotation = fmt.Sprintf("%q", annotation)
	}
	return []string{"--annotation", annotation}, ""
}

func (e engine) mounts(mounts []specs.Mount) (words []string) {
	for _, m := range mounts {
		switch {
		case e.name == "containerd" && m.Type == "bind":
			options := cmp.Or(strings.Join(m.Options, ":"), "rbind:rw")
			words = append(words, "--mount", fmt.Sprintf("type=bind,src=%s,dst=%s,options=%s", m.Source, m.Destination, options))
		case e.name == "containerd":
			words = append(words, "--mount", fmt.Sprintf("type=%s,src=%s,dst=%s,options=mode=755", m.Type, m.Source, m.Destination))
		case m.Type == "bind":
			words = append(words, "--volume", m.Source+":"+m.Destination)
		default:
			words = append(words, "--tmpfs", m.Destination)
		}
	}
	return words
}

// rules returns the options for device rules; the first rule of the spec is the engine's own.
func (s *scene) rules(rules []specs.LinuxDeviceCgroup) (words []string, not string) {
	for _, d := range s.spec.Linux.Devices {
		for path, known := range s.w.devices {
			if int64(known.major) == d.Major && int64(known.minor) == d.Minor {
				words = append(words, "--device", path+":"+d.Path)
			}
		}
	}
	for _, r := range rules {
		switch {
		case !r.Allow:
		case r.Major == nil:
			return []string{"--privileged"}, ""
		default:
			minor := "*"
			if r.Minor != nil {
				minor = fmt.Sprint(*r.Minor)
			}
			words = append(words, "--device-cgroup-rule", fmt.Sprintf("c %d:%s %s", *r.Major, minor, r.Access))
		}
	}
	if len(words) > 0 && s.w.engine.name == "containerd" {
		return nil, "its client has no words for device rules"
	}
	return words, ""
}

// holdDevices keeps a container of the scene running until the test ends, and returns its lease.
func (s *scene) holdDevices() (lease string) {
	s.t.Helper()
	undo := s.load()
	run := s.run()
	cmd := s.w.Command(run[0], run[1:]...)
	in, err := cmd.StdinPipe()
	s.runCommand(err)
	out, err := cmd.StdoutPipe()
	s.runCommand(err)
	s.runCommand(cmd.Start())
	s.t.Cleanup(func() {
		_, _ = fmt.Fprintln(in, "end") // it may have ended already
		_ = in.Close()
		s.runCommand(cmd.Wait())
		undo()
	})
	_, err = fmt.Fprintln(in, s.commands[0])
	s.runCommand(err)
	if answers := bufio.NewScanner(out); !answers.Scan() {
		s.t.Fatalf("the victim doesn't start: %v", answers.Err())
	}
	if s.entryPoint == "naive" {
		return "aaaaaaaaaaaa"
	}
	for _, l := range s.w.Leases(s.t) {
		if l.Live {
			return l.ID
		}
	}
	s.t.Fatal("the victim has no lease")
	return ""
}

// settles waits until no lease is left: engines clean up behind their commands' backs.
func (w *world) settles(t *testing.T) {
	t.Helper()
	var left []rig.Lease
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = slices.DeleteFunc(w.Leases(t), func(l rig.Lease) bool { return !l.Live }); len(left) == 0 {
			return
		}
	}
	t.Errorf("leases are left: %+v", left)
}
