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

// setCPUs keeps a container that wasn't started yet on the CPUs of a list; "" are all. Its
// runtime isn't kept there: it would wait for the others of a gang that are made on the same.
func setCPUs(list, proc string, pid int) error {
	if list == "" {
		return nil
	}
	var set unix.CPUSet
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("CPU list %q: %w", list, err)
		}
		set.Set(n)
	}
	// A runtime may have threads in there. One that comes meanwhile has the CPUs of the one
	// that made it: none is left out when all that are there were kept before.
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
