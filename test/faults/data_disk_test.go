package faults

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// startWithDataDisk returns a server of its own whose /var/lib/berth is a small ext4 with few
// inodes, and the name of the disk.
func startWithDataDisk(t *testing.T) (s server, disk string) {
	t.Helper()
	n, err := shared.Start("dgx-h100", "v2")
	rig.Must(t, err)
	s = server{n, "runc"}
	device, disk := makeDisk(t, "256M", "mkfs.ext4", "-q", "-N", "4096", "-E", "lazy_itable_init=0")
	s.Do(t, "mount", "-o", "errors=remount-ro", device, "/var/lib/berth")
	t.Cleanup(func() {
		s.Run(t, s.Command("sh", "-c", s.Berth+" ps -aq | xargs -r "+s.Berth+" rm -f")) // what a test that failed has left
		s.Do(t, "umount", "--lazy", "/var/lib/berth")
	})
	s.Do(t, s.Berth, "discover")
	return s, disk
}

// TestReadOnlyDataDisk: tasks can be ended on a file system that the kernel has made read-only after
// an error, and their devices are free then.
func TestReadOnlyDataDisk(t *testing.T) {
	s, disk := startWithDataDisk(t)
	testEndingOfTasks(t, s, "read-only file system", func() {
		rig.Must(t, os.WriteFile("/sys/fs/ext4/"+disk+"/trigger_fs_error", []byte("1"), 0))
	})
	got := s.Run(t, s.Command(s.Berth, "doctor"))
	if want := "/var/lib/berth is on a file system that the kernel has made read-only after an error"; got.Code == 0 || !strings.Contains(got.Out, want) {
		t.Errorf("berth doctor: %+v, want %q", got, want)
	}
}

// TestNoInodes: as TestReadOnlyDataDisk, for a disk on which no file can be made.
func TestNoInodes(t *testing.T) {
	s, _ := startWithDataDisk(t)
	dir, made := s.Path("/var/lib/berth/filling"), 0
	fill := func() {
		rig.Must(t, os.MkdirAll(dir, 0o700))
		for ; ; made++ {
			if err := unix.Mknod(fmt.Sprintf("%s/%d", dir, made), unix.S_IFREG|0o600, 0); errors.Is(err, unix.ENOSPC) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	testEndingOfTasks(t, s, "", func() {
		fill()
		// The task that restarts removes files meanwhile.
		want := "no more files can be made in /var/lib/berth"
		got := s.Run(t, s.Command(s.Berth, "doctor"))
		for n := 0; n < 20 && !strings.Contains(got.Out, want); n++ {
			fill()
			got = s.Run(t, s.Command(s.Berth, "doctor"))
		}
		if got.Code == 0 || !strings.Contains(got.Out, want) {
			t.Errorf("berth doctor: %+v, want %q", got, want)
		}
	})
}

// TestNoexecDataDisk: berth run and the driver's programs need no data directory from which
// programs can be run.
func TestNoexecDataDisk(t *testing.T) {
	n, err := shared.Start("dgx-h100", "v2")
	rig.Must(t, err)
	s := server{n, "runc"}
	s.Do(t, "mount", "-t", "tmpfs", "-o", "noexec,mode=755", "tmpfs", "/var/lib/berth")
	s.Do(t, s.Berth, "discover")
	if out := s.Do(t, s.Berth, "run", "--runtime", s.runtime, "--gpus", "1", rig.ImagePath(t, "debian"), "nvidia-smi", "-L"); !strings.HasPrefix(out, "GPU 0: ") {
		t.Errorf("nvidia-smi prints %q", out)
	}
	got := s.Run(t, s.Command(s.Berth, "doctor"))
	if want := "warning  data           /var/lib/berth is on a file system that is mounted with noexec"; !strings.Contains(got.Out, want) {
		t.Errorf("berth doctor: %+v, want %q", got, want)
	}
}

// testEndingOfTasks ends tasks in all ways after the disk was broken. remove is what rm -f
// fails with, "" if it doesn't.
func testEndingOfTasks(t *testing.T, s server, remove string, breakDisk func()) {
	t.Helper()
	detach := func(name, line string, flags ...string) {
		t.Helper()
		words := append([]string{"run", "-d", "--runtime", s.runtime, "--gpus", "1", "--name", name}, flags...)
		s.Do(t, s.Berth, append(words, rig.ImagePath(t, "busybox"), "sh", "-c", line)...)
	}
	detach("stopped", "exec sleep 1000")
	detach("restarted", "exec sleep 0.1", "--restart", "always")
	detach("removed", "exec sleep 1000")
	detach("unwatched", "exec sleep 1000")
	front := s.Command(s.Berth, "run", "--runtime", s.runtime, "--gpus", "1", "--name", "front", rig.ImagePath(t, "busybox"), "sleep", "1000")
	rig.Must(t, front.Start())
	t.Cleanup(func() { _ = front.Process.Kill(); _ = front.Wait() }) // it has ended, unless the test failed
	rig.WaitUntil(t, "all tasks run", func() bool { return len(s.Leases(t)) == 5 && s.namedState(t, "front") == "running" })
	rig.Must(t, unix.Kill(s.monitorOf(t, "unwatched"), unix.SIGKILL))

	breakDisk()
	// The task that restarts removes files meanwhile.
	for n := 0; os.WriteFile(s.Path(fmt.Sprintf("/var/lib/berth/new-%d", n)), nil, 0o600) == nil; n++ {
		if n == 100 {
			t.Fatal("the disk takes new files")
		}
		breakDisk()
	}
	for _, name := range []string{"stopped", "restarted", "unwatched", "front"} {
		if got := s.Run(t, s.Command("timeout", "60", s.Berth, "stop", "-t", "0", name)); got.Code != 0 || got.Out != name+"\n" {
			t.Errorf("berth stop %s: %+v", name, got)
		}
	}
	got := s.Run(t, s.Command("timeout", "60", s.Berth, "rm", "-f", "removed"))
	if (got.Code != 0) != (remove != "") || !strings.Contains(got.Err, remove) {
		t.Errorf("berth rm -f: %+v, want %q", got, remove)
	}
	if got := s.Run(t, s.Command(s.Berth, "run", "--gpus", "8", rig.ImagePath(t, "busybox"), "true")); strings.Contains(got.Err, "free") {
		t.Errorf("GPUs are held: %+v", got)
	}
	for _, l := range s.Leases(t) {
		if l.Live {
			t.Errorf("lease %+v is left", l)
		}
	}
}

// namedState is the state of the task of that name, "" without one.
func (s server) namedState(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(s.Do(t, "sh", "-c", s.Berth+" ps -a --json --filter name=^"+name+`$ | sed -n 's/.*"state": *"\([a-z]*\)".*/\1/p'`))
}

// monitorOf is the pid of a task's monitor.
func (s server) monitorOf(t *testing.T, name string) int {
	t.Helper()
	id := strings.TrimSpace(s.Do(t, s.Berth, "ps", "-q", "--filter", "name=^"+name+"$"))
	return s.readLife(t, id).Monitor.PID
}
