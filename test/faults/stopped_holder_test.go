package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// TestStoppedHolder: a process that was stopped while it held a lock is named in an error within
// seconds, whichever lock it is, and an admin ends it with one command.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	for _, lock := range []struct{ name, path, before string }{
		{"of the ledger", "/run/berth/ledger.lock", "true"},
		{"of the discovery", "/run/berth/discover.lock", "rm /run/berth/inventory.json"},
	} {
		t.Run(lock.name, func(t *testing.T) {
			t.Parallel()
			n, err := shared.Start("one-gpu", "v2")
			rig.Must(t, err)
			programs := copyPrograms(t, n, "berth-monitor")
			berth := programs + "/berth"
			n.Do(t, berth, "alloc", "1", "true")
			n.Do(t, "sh", "-c", lock.before)
			holder := holdLock(t, n, programs+"/berth-monitor", lock.path)
			began := time.Now()
			said := n.Run(t, n.Command(berth, "alloc", "1", "true"))
			if said.Code == 0 || !strings.Contains(said.Err, lock.path+": held by process ") || !strings.Contains(said.Err, " and is stopped, waited 1") ||
				!strings.Contains(said.Err, "; berth repair --break-lock ends ") {
				t.Errorf("alloc: code %d after %v: %s", said.Code, time.Since(began), said.Err)
			}
			said = n.Run(t, n.Command(berth, "repair", "--break-lock"))
			if said.Code != 0 || !strings.Contains(said.Out, "and is stopped: it held "+lock.path+"\n") {
				t.Errorf("repair: %+v", said)
			}
			if err := holder.Wait(); err == nil || err.Error() != "signal: killed" {
				t.Errorf("the holder: %v", err)
			}
			n.Do(t, berth, "alloc", "1", "true")
			if said := n.Run(t, n.Command(berth, "repair", "--break-lock")); said.Out != "no lock is blocked\n" {
				t.Errorf("repair, again: %+v", said)
			}
		})
	}
}

// TestForeignHolder: a program that isn't berth's is never ended, and keeps no other lock from being broken.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v2")
	rig.Must(t, err)
	n.Do(t, n.Berth, "alloc", "1", "true")
	programs := copyPrograms(t, n, "berth-monitor")
	holder := holdLock(t, n, "flock", "/run/berth/ledger.lock")
	own := holdLock(t, n, programs+"/berth-monitor", "/run/berth/discover.lock")
	said := n.Run(t, n.Command(programs+"/berth", "repair", "--break-lock"))
	if err := own.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the holder of the other lock: %v", err)
	}
	if said.Code != 1 || !strings.Contains(said.Out, "it held /run/berth/discover.lock\n") || strings.Contains(said.Out, "nobody") || !strings.Contains(said.Err, "that is no program of berth's: end it, or have it go on, by hand") {
		t.Errorf("repair: %+v", said)
	}
	rig.Must(t, holder.Process.Kill())
	_ = holder.Wait() // killed
	n.Do(t, n.Berth, "alloc", "1", "true")
}

// copyPrograms returns a directory with berth, and with flock(1) by the name of another of its programs.
func copyPrograms(t *testing.T, n *rig.Node, as string) string {
	t.Helper()
	dir := t.TempDir()
	flock, err := exec.LookPath("flock")
	rig.Must(t, err)
	for from, to := range map[string]string{n.Berth: "berth", filepath.Join(n.Dir, "berth-nvml"): "berth-nvml", flock: as} {
		data, err := os.ReadFile(from)
		rig.Must(t, err)
		rig.Must(t, os.WriteFile(filepath.Join(dir, to), data, 0o755)) //nolint:gosec // programs
	}
	return dir
}

// holdLock starts a process that holds the lock and is stopped.
func holdLock(t *testing.T, n *rig.Node, program, path string) *exec.Cmd {
	t.Helper()
	cmd := n.Command(program, "-o", path, "sh", "-c", "echo held; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	_, err = out.Read(make([]byte, 5))
	rig.Must(t, err)
	rig.Must(t, cmd.Process.Signal(unix.SIGSTOP))
	return cmd
}

// TestStoppedWaiter: a request whose process was stopped while it waits (^Z) or is in a frozen cgroup
// keeps nothing from later ones, and is served when it goes on.
func TestStoppedWaiter(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v2")
	rig.Must(t, err)
	end := holdGPU(t, n, nil)
	waiter := n.Command(n.Berth, "alloc", "--wait", "1", "true")
	rig.Must(t, waiter.Start())
	waits := func(text string) {
		t.Helper()
		for !strings.Contains(n.Do(t, n.Berth, "leases"), text) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	waits("waiting, 1st in the queue")
	rig.Must(t, waiter.Process.Signal(unix.SIGSTOP))
	waits("stopped; others overtake it")
	end()
	n.Do(t, n.Berth, "alloc", "1", "true")
	rig.Must(t, waiter.Process.Signal(unix.SIGCONT))
	rig.Must(t, waiter.Wait())
}
