// Package hostprocess moves processes of the host into the cgroup of a lease.
//
// A process is identified by a pidfd, because a pid can be reused at any moment. What is read by the pid of a [Process]
// counts only if the pidfd's process lives afterwards. Processes in namespaces of containers are refused: outside of
// the container's cgroup they would be without its limits.
//
// The package takes no leases, and keeps no state.
package hostprocess

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ErrRefused: the process can't get a lease. The error's text says why.
var ErrRefused = errors.New("refused")

// refusal is an error that Is ErrRefused and has a text of its own.
type refusal struct {
	text  string
	ended bool // the process has ended, or can't be seen
}

func (r refusal) Error() string   { return r.text }
func (r refusal) Is(e error) bool { return e == ErrRefused || r.ended && e == errEnded }

var errEnded = errors.New("ended")

// Refuse returns an error that Is ErrRefused.
func Refuse(format string, args ...any) error { return refusal{text: fmt.Sprintf(format, args...)} }

// AnyUser is the UID of a [Process] that may run as any users.
const AnyUser = -1

// Process is a process of the host. Its methods may be called at once, except for Examine and Close.
type Process struct {
	ledger.Process
	// UID is the only user that the process may run as, or AnyUser.
	UID int
	// FD is the pidfd.
	FD int
}

// Open returns the process with a pid, and uid as its UID. It must be closed. The error Is ErrRefused if there is none. Whether
// the process is the user's is checked by [Host.Examine], with the same error.
func Open(pid, uid int) (*Process, error) {
	if pid == 1 {
		return nil, Refuse("process 1 is the init of this host: everything descends from it")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // the last two: of a thread
		return nil, noSuchProcess(pid, uid)
	case err != nil:
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &Process{Process: ledger.Process{PID: pid}, UID: uid, FD: fd}, nil
}

// noSuchProcess is one error for a process that doesn't exist and for one of another user, whose processes may be hidden.
func noSuchProcess(pid, uid int) error {
	if uid == AnyUser {
		return Refuse("there is no process %d", pid)
	}
	return Refuse("there is no process %d of user %d", pid, uid)
}

// Close closes the pidfd.
func (p *Process) Close() { _ = unix.Close(p.FD) } // a pidfd holds no data

// IsAlive reports whether the process exists. A zombie does.
func (p *Process) IsAlive() bool {
	return !errors.Is(unix.PidfdSendSignal(p.FD, 0, nil, 0), unix.ESRCH)
}

// Host is where processes are examined and moved.
type Host struct {
	Proc string // where procfs is mounted
	Tree cgroup.Hierarchy
}

// CheckUserNamespace refuses a process in a user namespace of its own: with subordinate uids, one user
// would have the limits of many.
func (h Host) CheckUserNamespace(p *Process) error {
	other, err := h.hasOther(p, "user")
	switch {
	case err != nil:
		return err
	case !p.IsAlive():
		return hasEnded(p, unix.ESRCH)
	case other:
		return Refuse("process %d is in a user namespace of its own: leases are for processes of the host", p.PID)
	}
	return nil
}

// CheckNamespaceOwner refuses a process in a user namespace that was made by another user than the process's, and so a process with a
// subordinate uid.
func (h Host) CheckNamespaceOwner(p *Process) error {
	f, err := process.OpenNamespace(h.Proc, p.PID, "user")
	if err != nil {
		return hasEnded(p, err)
	}
	defer func() { f.Close() }() // the last of those that follow
	owner := p.UID
	for {
		// Source: ioctl_nsfs(2).
		parent, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_PARENT)
		if errors.Is(err, unix.EPERM) { // the machine's first
			break
		}
		if err != nil {
			return fmt.Errorf("find the user namespaces of process %d: %w", p.PID, err)
		}
		uid, err := unix.IoctlGetUint32(int(f.Fd()), unix.NS_GET_OWNER_UID)
		if err != nil {
			return errors.Join(fmt.Errorf("find the owner of the user namespace of process %d: %w", p.PID, err), unix.Close(parent))
		}
		owner = int(uid)
		f.Close() // nothing was written
		f = os.NewFile(uintptr(parent), "user namespace")
	}
	if !p.IsAlive() {
		return hasEnded(p, unix.ESRCH)
	}
	if owner != p.UID {
		return Refuse("process %d of user %d is in a user namespace of user %d", p.PID, p.UID, owner)
	}
	return nil
}

// CheckDescendant refuses a process that doesn't descend from the ancestor. It may be in a user namespace of its own.
func (h Host) CheckDescendant(p, ancestor *Process) error {
	found := IsDescendant(h.Proc, p.PID, ancestor.PID)
	switch {
	case !p.IsAlive():
		return hasEnded(p, unix.ESRCH)
	case !found, !ancestor.IsAlive():
		return Refuse("process %d does not descend from process %d", p.PID, ancestor.PID)
	}
	return nil
}

// hasEnded is the error for a process about which a question has failed with err.
func hasEnded(p *Process, err error) error {
	if errors.Is(err, process.ErrStuck) {
		return Refuse("process %d can't be examined: %v", p.PID, err)
	}
	return refusal{fmt.Sprintf("process %d has ended or is hidden: %v", p.PID, err), true}
}

// hasOther reports whether a process is in another namespace of a kind than this one.
func (h Host) hasOther(p *Process, kind string) (bool, error) {
	theirs, err := process.NamespaceOf(h.Proc, p.PID, kind)
	if err != nil {
		return false, hasEnded(p, err)
	}
	own, err := process.NamespaceOf(h.Proc, os.Getpid(), kind)
	return theirs != own, err
}

// Examine fills in start and PID namespace of a process, and returns its cgroup. It refuses a process
// that must not be moved: one that runs as another user than p.UID, and one in another PID or cgroup
// namespace, as in a container.
func (h Host) Examine(p *Process) (group string, err error) {
	if p.PID == 0 {
		return "", Refuse("the process is in a PID namespace that the host doesn't see")
	}
	users, err := readUsers(h.Proc, p.PID)
	switch {
	case err != nil:
		return "", hasEnded(p, err)
	case p.UID == AnyUser:
	case !slices.Contains(users, p.UID):
		return "", noSuchProcess(p.PID, p.UID)
	case slices.ContainsFunc(users, func(uid int) bool { return uid != p.UID }):
		return "", Refuse("process %d runs as users %v: leases of user %d are for processes of that user alone", p.PID, slices.Compact(slices.Sorted(slices.Values(users))), p.UID)
	}
	if p.Start, err = process.Start(h.Proc, p.PID); err != nil {
		return "", hasEnded(p, err)
	}
	if p.Namespace, err = process.Namespace(h.Proc, p.PID); err != nil {
		return "", hasEnded(p, err)
	}
	if group, err = h.findCgroup(p); err != nil {
		return "", err
	}
	contained := false
	for _, kind := range []string{"pid", "cgroup"} {
		other, err := h.hasOther(p, kind)
		if err != nil {
			return "", err
		}
		contained = contained || other
	}
	switch {
	case !p.IsAlive(), !process.Lives(h.Proc, p.PID, p.Start): // a zombie is the first, and not the second
		return "", hasEnded(p, unix.ESRCH)
	case contained:
		return "", Refuse("process %d is in a PID or cgroup namespace of its own, as in a container: leases are for processes of the host", p.PID)
	}
	return group, nil
}

// User returns the real uid of a process.
func (h Host) User(p *Process) (uid int, err error) {
	users, err := readUsers(h.Proc, p.PID)
	if err != nil {
		return 0, hasEnded(p, err)
	}
	return users[0], nil
}

// Name returns the name of a process, which it has chosen itself, "" if it has ended. Its command line isn't read, because that
// is in the process's memory, which can be a file of a server that doesn't answer.
func (h Host) Name(p *Process) string {
	name, _ := smallfile.String(h.Proc + "/" + strconv.Itoa(p.PID) + "/comm")
	return name
}

// The kernel forks a process within microseconds unless the parent is preempted meanwhile.
const (
	forkPause   = time.Millisecond
	forkTimeout = time.Second
)

// findCgroup returns the cgroup of a process. One that seems to be in the root may be in the middle of its fork, see
// [process.HasRun]: findCgroup waits until it has run on a CPU.
func (h Host) findCgroup(p *Process) (group string, err error) {
	for began := time.Now(); ; time.Sleep(forkPause) {
		ran := process.HasRun(h.Proc, p.PID)
		group, err = h.Tree.ProcessPath(h.Proc, p.PID)
		switch {
		case err != nil:
			return "", hasEnded(p, err)
		case ran, group != "/":
			return group, nil
		case !p.IsAlive():
			return "", hasEnded(p, unix.ESRCH)
		case time.Since(began) > forkTimeout:
			return "", Refuse("process %d has not run yet: try again", p.PID)
		}
	}
}

// maxStatus bounds /proc/PID/status, in bytes.
const maxStatus = 64 << 10

// readUsers returns the real, effective, saved and file system uid of a process.
func readUsers(proc string, pid int) (uids []int, err error) {
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		list, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		for _, word := range strings.Fields(list) {
			uid, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			uids = append(uids, uid)
		}
		if len(uids) == 4 {
			return uids, nil
		}
	}
	return nil, errors.New("no users in its status")
}

// Move moves a process into a cgroup, which the caller has examined. The kernel takes a pid for that, and the
// pid may be reused just before: then another process was moved, which Move puts back into the cgroup of
// its parent, where it was forked a moment ago.
func (h Host) Move(p *Process, group string) error {
	if err := h.Tree.Join(group, p.PID); err != nil {
		if !p.IsAlive() {
			return hasEnded(p, unix.ESRCH)
		}
		return err
	}
	if p.IsAlive() {
		return nil
	}
	return errors.Join(hasEnded(p, unix.ESRCH), h.returnStrays(p, group))
}

// returnStrays moves processes out of a cgroup that another process was to enter, which has ended: the one
// with its pid, and those of other users. Each goes into the cgroup of its parent. Children of the ended
// process stay: their parent may be pid 1 by now, whose cgroup has no limits.
func (h Host) returnStrays(p *Process, group string) error {
	inside, err := h.Tree.PIDs(group)
	for _, pid := range inside {
		users, uerr := readUsers(h.Proc, pid)
		if pid == p.PID || p.UID != AnyUser && uerr == nil && users[0] != p.UID {
			err = errors.Join(err, h.returnToParent(pid))
		}
	}
	return err
}

func (h Host) returnToParent(pid int) error {
	parent, err := process.Parent(h.Proc, pid)
	if err != nil || parent <= 1 {
		return err
	}
	group, err := h.Tree.ProcessPath(h.Proc, parent)
	if err != nil {
		return err
	}
	return h.Tree.Join(group, pid)
}
