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

// ReadSurroundings reads those of a process. proc is where procfs is mounted; pid is a number or "self".
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

// IsKernelThread reports whether a process has no program, as the kernel's threads. It is also true for one that is about to
// end.
func IsKernelThread(proc string, pid int) bool {
	_, err := os.Readlink(proc + "/" + strconv.Itoa(pid) + "/exe")
	return errors.Is(err, fs.ErrNotExist)
}

// SharesUsers reports whether a process is in this process's user namespace, so that its user ids mean the same. It is
// false for a process that has ended.
func SharesUsers(proc string, pid int) bool {
	own, err := NamespaceOf(proc, pid, "user")
	if err != nil {
		return false
	}
	mine, err := NamespaceOf(proc, os.Getpid(), "user")
	return err == nil && own == mine
}

// maxSystemUser is the highest id of an account that isn't a person's: SYS_UID_MAX of login.defs(5).
const maxSystemUser = 999

// IsSystems reports whether a process runs for root or a system account, and not for a person: none of its user ids
// is a person's. It is false for a process that has ended. The owner of /proc/PID says less: that is root for each
// process that can't be traced.
func IsSystems(proc string, pid int) bool {
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
