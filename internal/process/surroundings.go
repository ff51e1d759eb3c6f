package process

import (
	"errors"
	"io/fs"
	"os"
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
// for a process that has ended, and for one whose first thread has ended: the kernel then shows no root directory.
func ReadSurroundings(proc, pid string) (s Surroundings, err error) {
	dir := proc + "/" + pid
	// A stat of the link to a namespace takes ten times as long.
	if s.namespace, err = os.Readlink(dir + "/ns/pid"); err != nil {
		return s, err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/root", &st); err != nil {
		return s, &os.PathError{Op: "stat", Path: dir + "/root", Err: err}
	}
	s.device, s.inode = st.Dev, st.Ino
	return s, nil
}

// IsKernelThread reports whether a process has no program, as threads of the kernel. It is also true for a process that
// is about to end, or whose first thread has ended. proc is where procfs is mounted.
func IsKernelThread(proc string, pid int) bool {
	_, err := os.Readlink(proc + "/" + strconv.Itoa(pid) + "/exe")
	return errors.Is(err, fs.ErrNotExist)
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
