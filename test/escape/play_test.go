package escape

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// runOnce creates the container, and lets its program run its commands.
func (s *scene) runOnce() {
	s.t.Helper()
	defer s.end()
	if s.w.engine != nil {
		s.createByEngine()
	} else if s.between == nil {
		s.said = s.start("run")
	} else if s.said = s.start("create"); s.said.Code == 0 {
		s.between()
		s.act("start")
		for range 500 { // answers can come late
			if len(s.lines()) == len(s.commands) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	lines := s.lines()
	for i, command := range s.commands {
		if len(lines) == len(s.commands) {
			s.answers[command] = lines[i]
		}
	}
}

// lines returns the program's output so far.
func (s *scene) lines() []string {
	s.t.Helper()
	out, err := os.ReadFile(s.output())
	s.runCommand(err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// store writes the bundle.
func (s *scene) store() {
	s.t.Helper()
	data, err := json.MarshalIndent(s.spec, "", "\t")
	s.runCommand(err)
	s.write(filepath.Join(s.bundle, "config.json"), string(data))
}

// putRequest puts the user's request where this entry point reads it. An engine's user has options for
// that.
func (s *scene) putRequest() {
	if s.w.engine != nil {
		return
	}
	switch s.entryPoint {
	case "hook":
		args := []string{"berth-hook", "--config", s.config(), "createRuntime"}
		if s.request != "" {
			args = append(args, "--request", s.request)
		}
		hook := filepath.Join(shared.Dir, "berth-hook")
		s.spec.Hooks.CreateRuntime = append(s.spec.Hooks.CreateRuntime, specs.Hook{Path: hook, Args: args})
	case "wrapper":
		if s.request != "" {
			s.spec.Annotations["berth.gpus"] = s.request
		}
	case "naive":
		if s.request != "" {
			s.spec.Annotations[naiveRequest] = s.request
		}
	}
}

func (s *scene) config() string {
	path := filepath.Join(filepath.Dir(s.bundle), "config.toml")
	s.write(path, fmt.Sprintf("runtime = %q\nberth = %q\n%s", s.w.runtime, s.w.Berth, s.policy))
	return path
}

func (s *scene) output() string { return filepath.Join(filepath.Dir(s.bundle), "output") }

// program returns the program between the engine and the container.
func (s *scene) program() []string {
	root := []string{"--root", filepath.Join(filepath.Dir(s.bundle), "state")}
	if s.usualRoot {
		root = nil
	}
	switch s.entryPoint {
	case "naive":
		return append(s.naive(), root...)
	case "wrapper":
		return append([]string{s.w.Runtime}, root...)
	}
	return append([]string{s.w.runtime}, root...)
}

// naive returns the command of the naive injector, up to the arguments of an engine.
func (s *scene) naive() []string {
	words := append(naiveCommand(), "--hook", shared.hook, "--runtime", s.w.runtime)
	return append(append(words, s.naively...), "--")
}

// timeLimit is the time limit in seconds, for starts that must never hang, and for those that are
// expected to.
func (s *scene) timeLimit() string {
	if s.entryPoint == "naive" && s.hangs {
		return "3"
	}
	return "60"
}

// start makes the container.
func (s *scene) start(verb string) rig.Said {
	s.t.Helper()
	args := append([]string{"--kill-after=5", s.timeLimit()}, append(s.program(), verb, "--bundle", s.bundle, s.id)...)
	cmd := s.w.Command("timeout", args...)
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+s.config())
	return s.attempt(cmd)
}

// attempt runs a command that creates the container, whose program reads its commands from a file.
func (s *scene) attempt(cmd *exec.Cmd) rig.Said {
	s.t.Helper()
	in := strings.NewReader(strings.Join(append(slices.Clone(s.commands), "end"), "\n") + "\n")
	input, err := os.CreateTemp(s.t.TempDir(), "commands")
	s.runCommand(err)
	defer input.Close()
	_, err = in.WriteTo(input)
	s.runCommand(err)
	_, err = input.Seek(0, 0)
	s.runCommand(err)
	output, err := os.Create(s.output())
	s.runCommand(err)
	defer output.Close()
	cmd.Stdin, cmd.Stdout = input, output
	said := s.w.Run(s.t, cmd)
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.memory = usage.Maxrss
	}
	return said
}

// act calls the runtime for the existing container.
func (s *scene) act(words ...string) rig.Said {
	s.t.Helper()
	program := append(s.program(), append(words, s.id)...)
	cmd := s.w.Command(program[0], program[1:]...)
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+s.config())
	return s.w.Run(s.t, cmd)
}

// end deletes the container; one that was run to its end is gone already.
func (s *scene) end() {
	if s.w.engine != nil || s.between == nil && s.said.Code == 0 {
		return
	}
	s.naively = nil
	_ = s.act("delete", "--force")
}
