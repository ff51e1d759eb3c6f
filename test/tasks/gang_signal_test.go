package tasks

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// front is a gang in the foreground whose ranks have begun.
type front struct {
	cmd *exec.Cmd
	id  string
}

// startGang starts a gang of two and returns as soon as both ranks have run a first line.
func (s server) startGang(t *testing.T, line string, flags ...string) front {
	t.Helper()
	dir := t.TempDir()
	words := append([]string{"run", "--runtime", s.runtime, "--cidfile", dir + "/id", "-v", dir + ":/out", "-n", "2", "--network", "none"}, flags...)
	cmd := s.Command(s.Berth, append(words, rig.ImagePath(t, "busybox"), "sh", "-c", line)...)
	rig.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it has mostly ended
	rig.WaitUntil(t, "both ranks have begun", func() bool {
		begun, err := filepath.Glob(dir + "/[01]")
		rig.Must(t, err)
		return len(begun) == 2
	})
	id, err := os.ReadFile(dir + "/id")
	rig.Must(t, err)
	return front{cmd, string(id)}
}

// ends sends a signal and expects one of some exit codes.
func (f front) ends(t *testing.T, sig syscall.Signal, want ...int) {
	t.Helper()
	rig.Must(t, f.cmd.Process.Signal(sig))
	done := make(chan error, 1)
	go func() { done <- f.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("it goes on after %v", sig)
	}
	if code := f.cmd.ProcessState.ExitCode(); !slices.Contains(want, code) {
		t.Errorf("exit code %d after %v, want one of %d", code, sig, want)
	}
}

const serves = "; echo > /out/$RANK; while :; do sleep 0.01; done"

// TestGangSignals: a signal reaches all ranks, however soon it comes after their start.
func TestGangSignals(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		// No SIGINT: a shell that waits for a child may ignore it.
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGHUP} {
			f := s.startGang(t, "trap 'exit 5' TERM HUP USR1"+serves)
			f.ends(t, sig, 5)
			s.expectNothingLeft(t, f.id)
		}
	})
}

// TestGangSignalsWithoutMonitor: a signal that comes while the monitor dies isn't lost either. The
// exit code of a rank that ends before the next monitor watches is unknown, and a gang whose start
// wasn't reported is removed by the next command: berth run then ends with 125.
func TestGangSignalsWithoutMonitor(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		for range 3 {
			f := s.startGang(t, "trap 'exit 6' TERM"+serves)
			rig.Must(t, syscall.Kill(s.monitor(t, f.id), syscall.SIGKILL))
			f.ends(t, syscall.SIGTERM, 6, 255, 143, 125)
			rig.WaitUntil(t, "it is gone", func() bool { return s.RunBerth(t, "ps", "-a", "-q", "--filter", "id="+f.id).Out == "" })
			s.expectNothingLeft(t, f.id)
		}
	})
}

// TestGangSignalBetweenLives: a gang that waits for its next life has no process; its stop
// signal ends it all the same.
func TestGangSignalBetweenLives(t *testing.T) {
	s := startApart(t, "v2", "crun")
	f := s.startGang(t, "echo > /out/$RANK; exit 7", "--restart", "always")
	rig.WaitUntil(t, "it waits for its next life", func() bool {
		life := s.Do(t, "cat", "/var/lib/berth/tasks/"+f.id+"/run.json")
		return strings.Contains(life, `"restarts":3`) && strings.Contains(life, `"ended":{`)
	})
	f.ends(t, syscall.SIGTERM, 7)
	s.expectNothingLeft(t, f.id)
}

// TestGangSignalEndsRestarts: ^C or the end of the command in the foreground ends a gang, not just
// one of its lives. Other signals are passed to the ranks.
func TestGangSignalEndsRestarts(t *testing.T) {
	s := startApart(t, "v2", "runc")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		f := s.startGang(t, "echo > /out/$RANK; exec sleep 1000", "--restart", "always")
		f.ends(t, sig, 128+int(sig))
		s.expectNothingLeft(t, f.id)
	}
	f := s.startGang(t, "echo > /out/$RANK; exit 7", "--restart", "always")
	f.ends(t, syscall.SIGINT, 7, 130)
	s.expectNothingLeft(t, f.id)
	f = s.startGang(t, "echo life >> /out/lives-$RANK; trap 'exit 5' USR1"+serves, "--restart", "1")
	rig.Must(t, f.cmd.Process.Signal(syscall.SIGUSR1))
	rig.WaitUntil(t, "there is another life", func() bool {
		return strings.Contains(s.Do(t, "cat", "/var/lib/berth/tasks/"+f.id+"/run.json"), `"restarts":1`)
	})
	f.ends(t, syscall.SIGTERM, 143, 125) // it may be just about to start
}

// monitor is the process that watches over a gang.
func (s server) monitor(t *testing.T, id string) int {
	t.Helper()
	text := s.Do(t, "cat", "/var/lib/berth/tasks/"+id+"/run.json")
	_, rest, _ := strings.Cut(text, `"monitor":{"pid":`)
	number, _, _ := strings.Cut(rest, ",")
	pid, err := strconv.Atoi(number)
	rig.Must(t, err)
	return pid
}
