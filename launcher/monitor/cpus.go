package monitor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// setCPUs restricts the init of a container that wasn't started yet to the CPUs of a list of numbers,
// as "0,2"; "" means all. The runtime that has created the container isn't restricted: the runtimes
// of a gang's ranks would compete for the same CPUs.
func setCPUs(list, proc string, pid int) error {
	if list == "" {
		return nil
	}
	var set unix.CPUSet
	for word := range strings.SplitSeq(list, ",") {
		cpu, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("CPU list %q: %w", list, err)
		}
		set.Set(cpu)
	}
	// The process may still be the runtime, with several threads. A new thread inherits the CPUs of
	// its creator, so all threads are restricted once a pass finds no thread that isn't.
	kept := map[int]bool{}
	for before := -1; len(kept) > before; {
		before = len(kept)
		if err := keepThreads(&set, filepath.Join(proc, strconv.Itoa(pid), "task"), kept); err != nil {
			return fmt.Errorf("keep process %d on CPUs %s: %w", pid, list, err)
		}
	}
	return nil
}

// keepThreads sets the affinity of the threads that are not in kept yet. A thread that has ended
// meanwhile is not an error.
func keepThreads(set *unix.CPUSet, dir string, kept map[int]bool) error {
	threads, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil || kept[tid] {
			continue
		}
		kept[tid] = true
		if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
