package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// WaitsForStart reports whether a process, named by its pid and its start time, is the first process of a container
// that runc or crun has created and not started. Such a process was forked by the runtime, hasn't executed a program
// since, and holds the FIFO exec.fifo, which the runtime removes from its state directory at the start. The two are
// checked together: programs that the runtime itself runs (WebAssembly, a virtual machine) and processes that CRIU
// has restored never execute a program, but hold no such FIFO.
//
// It is false if that can't be determined: reading the descriptors takes CAP_SYS_PTRACE.
func WaitsForStart(proc string, pid int, start uint64) bool {
	fields, err := readFields(proc, pid)
	if err != nil || len(fields) <= flagsField || !isForked(fields) || !holdsStartFIFO(proc, pid) {
		return false
	}
	now, err := Start(proc, pid) // read last: what was read before is then of this process
	return err == nil && now == start
}

// holdsStartFIFO reports whether a process has a FIFO open that is called exec.fifo and wasn't removed.
func holdsStartFIFO(proc string, pid int) bool {
	holds, err := readBounded(proc, pid, func() (bool, error) { return findStartFIFO(proc, pid), nil })
	return holds && err == nil
}

func findStartFIFO(proc string, pid int) bool {
	dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
	names, _ := smallfile.Names(dir) // without its descriptors nothing is known
	for _, name := range names {
		path := filepath.Join(dir, name)
		target, err := os.Readlink(path) // it ends with " (deleted)" once the file was removed
		var st unix.Stat_t
		if err == nil && strings.HasSuffix(target, "/exec.fifo") && unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			return true
		}
	}
	return false
}
