package process

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A process is found by a descriptor of the device, whatever the node is called, and by no other descriptor.
func TestOpenFiles(t *testing.T) {
	start := func(path string) int {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd := exec.Command("sleep", "1000")
		cmd.ExtraFiles = []*os.File{f}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		return cmd.Process.Pid
	}
	number := func(path string) uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Rdev
	}
	full, file, skipped := start("/dev/full"), start("/proc/self/status"), start("/dev/full")
	var with []int
	for f := range OpenFiles("/proc", func(pid int) bool { return pid == skipped }) {
		if f.PID == skipped {
			t.Fatalf("a file of a process that is skipped: %+v", f)
		}
		if f.Device == number("/dev/full") {
			with = append(with, f.PID)
		}
	}
	if !slices.Contains(with, full) || slices.Contains(with, file) {
		t.Errorf("/dev/full is open in %v, want %d among them and not %d", with, full, file)
	}
}
