// Package process names a process for good: a pid alone can be reused, a pid and the
// time at which the process started can't.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// maxStat is more than /proc/PID/stat ever has.
const maxStat = 4 << 10

// Start is when the process started, in clock ticks since the boot, read from procfs
// mounted at proc. It is the same in every time namespace. The error Is fs.ErrNotExist if there is
// no such process. Source: proc_pid_stat(5), field 22.
func Start(proc string, pid int) (ticks uint64, err error) {
	s, err := readStat(proc, pid)
	return s.start, err
}

// Age is how long ago a process started whose Start that is.
func Age(start uint64) time.Duration {
	offset, err := ReadBootOffset("/proc")
	if err != nil {
		return 0 // never on kernels that have pidfds
	}
	uptime, err := offset.HostUptime()
	if err != nil {
		return 0
	}
	return uptime - time.Duration(start)*tick
}

// Lives says whether just the process with this pid and start exists, and isn't a
// corpse that its parent hasn't buried. What can't be told counts as life.
func Lives(proc string, pid int, start uint64) bool {
	s, err := readStat(proc, pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	return s.start == start && !s.dead
}

// Namespace is the inode of a process's pid namespace: a pid names a process only together with it.
// The error Is fs.ErrNotExist if there is no such process.
func Namespace(proc string, pid int) (uint64, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/ns/pid"
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// Stopped says whether a process was stopped by a signal or is being traced.
func Stopped(proc string, pid int) bool {
	s, err := readStat(proc, pid)
	return err == nil && s.stopped
}

type stat struct {
	start   uint64
	stopped bool
	// dead: no thread of it runs. The first thread alone may end earlier.
	dead bool
}

func readStat(proc string, pid int) (stat, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/stat"
	data, err := smallfile.Read(path, maxStat)
	if err != nil {
		return stat{}, err
	}
	s, err := parseStat(data)
	if err != nil {
		return stat{}, fmt.Errorf("read %s: %w", path, err)
	}
	offset, err := ReadBootOffset(proc)
	if err == nil {
		s.start, err = offset.HostTicks(s.start)
	}
	return s, err
}

// parseStat reads the fields 3, 20 and 22.
func parseStat(data []byte) (s stat, err error) {
	// The name before the third field can hold anything, ")" too.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return stat{}, errors.New("too few fields")
	}
	s.stopped = fields[0][0] == 'T' || fields[0][0] == 't'
	ended := fields[0][0] == 'Z' || fields[0][0] == 'X'
	s.dead = ended && (string(fields[17]) == "0" || string(fields[17]) == "1")
	s.start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, err
}

// HostRoot says whether this process is root of the machine, by procfs mounted at proc:
// root of a user namespace has no say over the machine's devices and cgroups.
func HostRoot(proc string) (bool, error) {
	ids, err := smallfile.Read(proc+"/self/uid_map", maxStat)
	return os.Geteuid() == 0 && wholeMap(string(ids)), err
}

// wholeMap says that each user is itself, as outside of all user namespaces.
func wholeMap(ids string) bool {
	return slices.Equal(strings.Fields(ids), []string{"0", "0", "4294967295"})
}

// Heeds says whether a process has a handler for a signal, ignores it on purpose, or
// blocks it, as those do that wait for signals (sigwait, signalfd). The kernel drops what
// pid 1 of a container doesn't heed, where it would end any other process. One that is
// still a runtime, about to become its command, has that one's handlers a moment later,
// and loses what comes before: it is waited for, a second at most. Source:
// proc_pid_status(5), SigIgn, SigCgt and SigBlk.
func Heeds(proc string, pid int, signal int) bool {
	for range 1000 {
		if hasExecuted(proc, pid) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	return err == nil && isHandled(string(status), signal)
}

// forkNoExec is PF_FORKNOEXEC of the kernel's linux/sched.h: the process came of a fork,
// and has become no other program since.
const forkNoExec = 0x40

// hasExecuted says that a process runs the program that it was made for, as far as can be
// told. Source: proc_pid_stat(5), field 9.
func hasExecuted(proc string, pid int) bool {
	data, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/stat", maxStat)
	if err != nil {
		return true
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 7 {
		return true
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	return err != nil || flags&forkNoExec == 0
}

// maxStatus is more than /proc/PID/status has, which lists groups and NUMA nodes.
const maxStatus = 1 << 20

func isHandled(status string, signal int) bool {
	return isInMasks(status, signal, "SigIgn", "SigCgt", "SigBlk")
}

// Pends says whether a signal was sent to a process that hasn't taken note of it yet: it
// wasn't scheduled since, or is about to become another program.
func Pends(proc string, pid int, signal int) bool {
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	return err == nil && isInMasks(string(status), signal, "ShdPnd")
}

// isInMasks says whether a signal is in one of a status's masks.
func isInMasks(status string, signal int, masks ...string) bool {
	for line := range strings.SplitSeq(status, "\n") {
		name, value, _ := strings.Cut(line, ":")
		if !slices.Contains(masks, name) {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err == nil && mask&(1<<(signal-1)) != 0 {
			return true
		}
	}
	return false
}
