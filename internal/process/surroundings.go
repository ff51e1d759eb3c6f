package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Surroundings are the PID namespace and the root directory of a process. They tell a container's processes from those of
// the host.
type Surroundings struct {
	namespace string
	device    uint64 // of the root directory
	inode     uint64
}

// ReadSurroundings returns the surroundings of a process. proc is where procfs is mounted; pid is a number or "self". It fails
// for a process that has ended, and with ErrStuck for one that can't be read. A root directory whose attributes can't be read is one of its own.
//
// Attributes are read without a request to a file's server: a process can have its root on a file system that doesn't answer.
func ReadSurroundings(proc, pid string) (s Surroundings, err error) {
	id, err := strconv.Atoi(pid)
	if err != nil {
		return readSurroundings(proc + "/" + pid)
	}
	return readBounded(proc, id, func() (Surroundings, error) { return readSurroundings(proc + "/" + pid) })
}

func readSurroundings(dir string) (s Surroundings, err error) {
	// A stat of the link to a namespace takes ten times as long.
	if s.namespace, err = os.Readlink(dir + "/ns/pid"); err != nil {
		return s, err
	}
	s.device, s.inode, err = readRoot(dir)
	if hasEnded(err) { // the first thread may have ended before the others
		threads, _ := filepath.Glob(dir + "/task/[0-9]*") // the pattern is well-formed
		for i := 0; i < len(threads) && hasEnded(err); i++ {
			s.device, s.inode, err = readRoot(threads[i])
		}
	}
	if hasEnded(err) {
		return s, &os.PathError{Op: "stat", Path: dir + "/root", Err: err}
	}
	return s, nil
}

func hasEnded(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// readRoot returns the file system and the inode of the root directory of a process or thread.
func readRoot(dir string) (device, inode uint64, err error) {
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, dir+"/root", unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st)
	return unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, err
}

// SharesPIDs reports whether both are in the same PID namespace.
func (s Surroundings) SharesPIDs(o Surroundings) bool { return s.namespace == o.namespace }

// IsKernelThread reports whether a process is a thread of the kernel. It is false for a process that has ended. proc is where
// procfs is mounted.
func IsKernelThread(proc string, pid int) bool {
	const kernelThread = 0x00200000 // PF_KTHREAD of the kernel's linux/sched.h
	fields, err := readFields(proc, pid)
	if err != nil || len(fields) <= flagsField {
		return false
	}
	flags, err := strconv.ParseUint(fields[flagsField], 10, 32)
	return err == nil && flags&kernelThread != 0
}

// SharesUserNamespace reports whether a process is in the user namespace of the caller, so that its user ids mean the
// same. It is false for a process that has ended. proc is where procfs is mounted.
func SharesUserNamespace(proc string, pid int) bool {
	theirs, err := NamespaceOf(proc, pid, "user")
	if err != nil {
		return false
	}
	own, err := NamespaceOf(proc, os.Getpid(), "user")
	return err == nil && theirs == own
}

// maxSystemUser is the highest id of an account that isn't a person's: SYS_UID_MAX of login.defs(5).
const maxSystemUser = 999

// RunsAsSystemUser reports whether none of a process's user ids is a person's, so that it runs for root or a system account.
// The ids are those of the caller's user namespace. It is false for a process that has ended. proc is where procfs is
// mounted. The owner of /proc/PID says less: that is root for each process that can't be traced.
func RunsAsSystemUser(proc string, pid int) bool {
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	if err != nil {
		return false
	}
	_, rest, found := strings.Cut(string(status), "\nUid:")
	line, _, _ := strings.Cut(rest, "\n")
	for _, field := range strings.Fields(line) { // real, effective, saved, file system
		if id, err := strconv.Atoi(field); err != nil || id > maxSystemUser {
			return false
		}
	}
	return found
}
