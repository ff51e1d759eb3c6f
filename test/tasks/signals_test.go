package tasks

import (
	"bufio"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// signalled is a berth command that passes its signals on to a shell in a container.
type signalled struct {
	cmd  *exec.Cmd
	task string // "" for a command that berth stop doesn't end
}

// startAndAwaitTraps starts a command and waits until each of the shells has written that its traps are
// set.
func (s server) startAndAwaitTraps(t *testing.T, task string, words []string, shells ...string) signalled {
	t.Helper()
	cmd := s.Command(s.Berth, words...)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it has ended, unless the test failed
	waiting := map[string]bool{}
	for _, shell := range shells {
		waiting[shell] = true
	}
	scan := bufio.NewScanner(out)
	for len(waiting) > 0 && scan.Scan() {
		for shell := range waiting {
			if strings.HasSuffix(scan.Text(), shell) {
				delete(waiting, shell)
			}
		}
	}
	if len(waiting) > 0 {
		t.Fatalf("berth %q ends, and nothing comes of %v", words, waiting)
	}
	go func() { // the shells go on writing
		for scan.Scan() {
			continue
		}
	}()
	return signalled{cmd, task}
}

// code waits for the end of the command.
func (c signalled) code(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%q doesn't end", c.cmd.Args)
	}
	return c.cmd.ProcessState.ExitCode()
}

// TestSignals: signals reach a container however it was started, and SIGWINCH, which also
// says that a terminal has another size, reaches it where it is the stop signal and nowhere
// else.
func TestSignals(t *testing.T) {
	const traps = `trap "exit 5" TERM HUP USR1; trap "exit 6" WINCH; `
	const writes = `while :; do echo "ready $RANK"; sleep 0.02; done`
	ways := []struct {
		name  string
		start func(t *testing.T, s server, line string, flags ...string) signalled
	}{
		{"foreground", func(t *testing.T, s server, line string, flags ...string) signalled {
			t.Helper()
			words := append([]string{"run", "--runtime", s.runtime, "--name", "signalled"}, flags...)
			return s.startAndAwaitTraps(t, "signalled", append(words, rig.ImagePath(t, "busybox"), "sh", "-c", line), "ready ")
		}},
		{"detached", func(t *testing.T, s server, line string, flags ...string) signalled {
			t.Helper()
			id := s.detach(t, append(flags, rig.ImagePath(t, "busybox"), "sh", "-c", line)...)
			return s.startAndAwaitTraps(t, id, []string{"attach", "--no-stdin", id}, "ready ")
		}},
		{"exec", func(t *testing.T, s server, line string, flags ...string) signalled {
			t.Helper()
			id := s.detach(t, rig.ImagePath(t, "busybox"), "sleep", "1000")
			return s.startAndAwaitTraps(t, "", []string{"exec", id, "sh", "-c", line}, "ready ")
		}},
		{"gang", func(t *testing.T, s server, line string, flags ...string) signalled {
			t.Helper()
			words := append([]string{"run", "--runtime", s.runtime, "--name", "signalled", "-n", "2", "--network", "none"}, flags...)
			return s.startAndAwaitTraps(t, "signalled", append(words, rig.ImagePath(t, "busybox"), "sh", "-c", line), "ready 0", "ready 1")
		}},
	}
	for _, tt := range []struct {
		name string
		line string
		sent []syscall.Signal // to the command
		stop string           // --stop-signal, and berth stop
		code int
	}{
		{"TERM", traps + writes, []syscall.Signal{unix.SIGTERM}, "", 5},
		{"USR1", traps + writes, []syscall.Signal{unix.SIGUSR1}, "", 5},
		{"HUP", traps + writes, []syscall.Signal{unix.SIGHUP}, "", 5},
		{"TERM without a handler", writes, []syscall.Signal{unix.SIGTERM}, "", 128 + 15},
		{"the terminal's size", traps + writes, []syscall.Signal{unix.SIGWINCH, unix.SIGUSR1}, "", 5},
		{"stop by USR1", traps + writes, nil, "USR1", 5},
		{"stop by WINCH", traps + writes, nil, "WINCH", 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s server) {
				for _, w := range ways {
					if tt.stop != "" && w.name == "exec" {
						continue // the stop signal is the task's
					}
					t.Run(w.name, func(t *testing.T) {
						var flags []string
						if tt.stop != "" {
							flags = []string{"--stop-signal", tt.stop}
						}
						c := w.start(t, s, tt.line, flags...)
						for _, sig := range tt.sent {
							rig.Must(t, c.cmd.Process.Signal(sig))
						}
						if tt.stop != "" {
							s.prints(t, c.task+"\n", "stop", "-t", "-1", c.task)
						}
						if code := c.code(t); code != tt.code {
							t.Errorf("exit code %d, want %d", code, tt.code)
						}
					})
				}
			})
		})
	}
}
