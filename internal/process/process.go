// Package process reads procfs and identifies processes by pid and start time: a pid alone can be reused.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/userns"
)

// Start returns when a process started, in clock ticks since the host's boot, read from procfs mounted
// at proc. The error Is fs.ErrNotExist if there is no such process.
func Start(proc string, pid int) (ticks uint64, err error) {
	s, err := readStat(proc, pid)
	return s.Start, err
}

// Age returns how long ago a process started, given the result of Start. It is 0 on errors.
func Age(start uint64) time.Duration {
	offset, err := ReadBootOffset("/proc")
	if err != nil {
		return 0 // doesn't happen on kernels with pidfds
	}
	uptime, err := offset.HostUptime()
	if err != nil {
		return 0
	}
	return uptime - time.Duration(start)*Tick
}

// Lives reports whether the process with this pid and start time exists and isn't a zombie. A stuck one exists.
// It is true if that can't be determined.
func Lives(proc string, pid int, start uint64) bool {
	s, err := readStat(proc, pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return s.Start == start && !s.Dead
}

// Own returns the pid of this process in a procfs. It differs from os.Getpid if the procfs is that of an outer PID namespace.
func Own(proc string) (int, error) {
	link, err := os.Readlink(proc + "/self")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(link)
}

// Namespace returns the inode of a process's pid namespace: a pid names a process only together with it.
// The error Is fs.ErrNotExist if there is no such process, and ErrStuck if it can't be read.
func Namespace(proc string, pid int) (uint64, error) { return NamespaceOf(proc, pid, "pid") }

// NamespaceOf is Namespace for a namespace of another kind, named as in /proc/PID/ns.
func NamespaceOf(proc string, pid int, kind string) (uint64, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/ns/" + kind
	return readBounded(proc, pid, func() (inode uint64, err error) {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		return st.Ino, nil
	})
}

// OpenNamespace opens a namespace of a process. The errors are those of Namespace.
func OpenNamespace(proc string, pid int, kind string) (*os.File, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/ns/" + kind
	return readBounded(proc, pid, func() (*os.File, error) { return os.Open(path) })
}

// ReadLink returns what a link in a process's directory of procfs leads to, such as "exe" or "ns/mnt". The error Is ErrStuck if
// that can't be read.
func ReadLink(proc string, pid int, name string) (string, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/" + name
	return readBounded(proc, pid, func() (string, error) { return os.Readlink(path) })
}

// maxCommandLine bounds ReadCommandLine, in bytes.
const maxCommandLine = 1 << 20

// ReadCommandLine returns the arguments of a process, each with a zero byte behind it. They are in memory that the process can
// change. The error Is ErrStuck if they can't be read.
func ReadCommandLine(proc string, pid int) ([]byte, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/cmdline"
	got, o := readInBackground(question{proc, pid, mapFilesLock}, func(*read) (r result[[]byte]) {
		r.value, r.err = smallfile.Read(path, maxCommandLine)
		return r
	})
	if o != answered {
		return nil, ErrStuck
	}
	return got.value, got.err
}

// HasRun reports whether a process has run on a CPU. A process that is being forked hasn't, and is visible in /proc before
// the kernel has put it into its parent's cgroup: until then it seems to be in the root. So its cgroup counts only if it is read
// after HasRun has returned true. It is true if that can't be determined, and may be false for a process that was never taken
// from its CPU yet.
// Source: kernel/fork.c, where copy_process attaches the pid before it calls cgroup_post_fork; proc_pid_status(5).
func HasRun(proc string, pid int) bool {
	status, err := smallfile.Read(filepath.Join(proc, strconv.Itoa(pid), "status"), maxStatus)
	return err != nil || hasRun(string(status))
}

func hasRun(status string) bool {
	counted := false
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if name != "voluntary_ctxt_switches" && name != "nonvoluntary_ctxt_switches" {
			continue
		}
		if counted = true; strings.TrimSpace(value) != "0" {
			return true
		}
	}
	return !counted
}

// Stopped reports whether a process is stopped by a signal, or traced.
func Stopped(proc string, pid int) bool {
	fields, err := readFields(proc, pid)
	return err == nil && len(fields) > 0 && isStopped(fields[stateField])
}

// Parent returns the pid of a process's parent, 0 if the parent is outside of this pid namespace. The
// error Is fs.ErrNotExist if there is no such process.
func Parent(proc string, pid int) (int, error) {
	fields, err := readFields(proc, pid)
	if err != nil {
		return 0, err
	}
	if len(fields) <= parentField {
		return 0, errors.New("too few fields")
	}
	return strconv.Atoi(fields[parentField])
}

// HostRoot reports whether this process is root of the machine. Root of a user namespace has no rights on the machine's
// devices and cgroups. proc is where procfs is mounted.
func HostRoot(proc string) (bool, error) {
	ids, err := smallfile.Read(proc+"/self/uid_map", maxStat)
	return os.Geteuid() == 0 && userns.IsInitial(string(ids)), err
}

// HandlesSignal reports whether a process handles, ignores or blocks a signal (processes that use sigwait or
// signalfd block it). The kernel drops any other signal for pid 1 of a container, although its
// default action would end another process. HandlesSignal returns false for a process that is still the
// runtime, or that executes a program at this moment, unless it ignores the signal: its handlers don't outlive that.
// Source: proc_pid_status(5), SigIgn, SigCgt and SigBlk.
func HandlesSignal(proc string, pid int, signal int) bool {
	executed := hasExecuted(proc, pid) // read before the handlers, so that they are not the runtime's
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	switch {
	case err != nil:
		return false
	case !executed:
		return isInMasks(string(status), signal, "SigIgn")
	}
	return isHandled(string(status), signal)
}

// forkNoExec is PF_FORKNOEXEC of the kernel's linux/sched.h: the process was forked and hasn't executed a program since.
const forkNoExec = 0x40

// hasExecuted reports whether a process has executed a program since it was forked, and doesn't execute
// another one at this moment. It is true if that can't be determined.
func hasExecuted(proc string, pid int) bool {
	fields, err := readFields(proc, pid)
	if err != nil || len(fields) <= codeField {
		return true
	}
	// Between the end of the old program and the begin of the new one's code, the kernel resets the handlers.
	// A first thread that has ended while others run has no code either.
	executes := fields[codeField] == "0" && !isZombie(fields[stateField])
	return !isForked(fields) && !executes
}

// isForked reports by the fields of a process's stat whether it was forked and hasn't executed a program since.
func isForked(fields []string) bool {
	flags, err := strconv.ParseUint(fields[flagsField], 10, 64)
	return err == nil && flags&forkNoExec != 0
}

// maxStatus bounds /proc/PID/status, which lists groups and NUMA nodes, and /proc/PID/cgroup, in bytes.
const maxStatus = 1 << 20

func isHandled(status string, signal int) bool {
	return isInMasks(status, signal, "SigIgn", "SigCgt", "SigBlk")
}

// HasPending reports whether a signal is pending for a process.
func HasPending(proc string, pid int, signal int) bool {
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	return err == nil && isInMasks(string(status), signal, "ShdPnd")
}

// isInMasks reports whether a signal is in one of a status's masks.
func isInMasks(status string, signal int, masks ...string) bool {
	return slices.ContainsFunc(masks, func(name string) bool {
		mask, err := Mask(status, name)
		return err == nil && mask&(1<<(signal-1)) != 0
	})
}

// Mask returns a mask of signals or capabilities, such as "CapEff", in a status of proc(5).
func Mask(status, name string) (uint64, error) {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	return 0, fmt.Errorf("status of a process has no %s", name)
}

// MayLiftMemlock reports whether this process can lift its limit of locked memory. proc is the procfs; a status file that
// can't be read counts as yes.
func MayLiftMemlock(proc string) bool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Max == unix.RLIM_INFINITY {
		return true
	}
	text, err := smallfile.String(filepath.Join(proc, "self/status"))
	if err != nil {
		return true
	}
	mask, err := Mask(text, "CapEff")
	return err != nil || mask&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Children returns the pids of a process's children. Those that start or end during the call may be left out. proc is where
// procfs is mounted; without procfs the list is empty.
func Children(proc string, pid int) (children []int) {
	for _, child := range List(proc) {
		if parent, err := Parent(proc, child); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children
}
