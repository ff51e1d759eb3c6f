package monitor

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSetCPUs keeps this process on a CPU, which has threads as runc's first process does.
func TestSetCPUs(t *testing.T) {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	first, list := -1, ""
	for cpu := range len(all) * 64 {
		if all.IsSet(cpu) {
			list += "," + strconv.Itoa(cpu)
			if first < 0 {
				first = cpu
			}
		}
	}
	defer func() {
		if err := setCPUs(list[1:], "/proc", os.Getpid()); err != nil {
			t.Error(err)
		}
	}()
	one.Set(first)
	if err := setCPUs(strconv.Itoa(first), "/proc", os.Getpid()); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range threads {
		tid, err := strconv.Atoi(name.Name())
		if err != nil {
			t.Fatal(err)
		}
		var has unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &has); err == nil && has != one {
			t.Errorf("thread %d of %d isn't on CPU %d alone: %v", tid, len(threads), first, has)
		}
	}
	if err := setCPUs("0-1", "/proc", os.Getpid()); err == nil {
		t.Error("a range of CPUs was taken for a number")
	}
	if err := setCPUs("0", "/proc", 1<<30); err != nil {
		t.Errorf("a process that has gone: %v", err)
	}
}
