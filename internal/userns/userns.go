// Package userns is about user namespaces, in which an ordinary user can start containers.
//
// The user is root inside: files of the user belong to root there. The user's subordinate ids, which the admin gives in
// /etc/subuid and /etc/subgid, are the other users and groups. Files of all others belong to the user nobody. Root inside may mount file
// systems and create namespaces. It can't create device nodes, exceed the user's limits or change to a user that it
// doesn't have.
package userns

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsInside reports whether this process is in a user namespace other than the machine's first.
func IsInside() bool { return readOuterUID() >= 0 }

// OuterUID returns the uid outside of the user of this process's user namespace, and this process's effective uid in the first one.
func OuterUID() int {
	if uid := readOuterUID(); uid >= 0 {
		return uid
	}
	return os.Geteuid()
}

// readOuterUID returns the uid that root of this user namespace, or where there is none this process's user, has in its parent; -1 in
// the first user namespace.
func readOuterUID() int {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return -1 // a kernel without user namespaces
	}
	return parseOuterUID(string(data), os.Geteuid())
}

func parseOuterUID(uidMap string, own int) int {
	m := parseIDMap(uidMap)
	for _, id := range []int{0, own} {
		if uid, found := m.outerID(uint64(id)); found && !m.isIdentity() { //nolint:gosec // not negative
			return int(uid) //nolint:gosec // 32 bits
		}
	}
	return -1
}

// Enter makes a command start as root of a user namespace of its own that has no other user, and in a mount namespace. Its
// groups stay, and can't be changed.
func Enter(cmd *exec.Cmd) {
	enterAs(cmd, 0, 0)
}

// EnterAsSelf is [Enter] without a change of user and group. The command has the capabilities in the user namespace by which it makes
// mounts, and programs that it executes have them, too, unless it drops its ambient capabilities.
func EnterAsSelf(cmd *exec.Cmd) {
	enterAs(cmd, os.Geteuid(), os.Getegid())
	cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE, unix.CAP_SETPCAP}
}

func enterAs(cmd *exec.Cmd, uid, gid int) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Geteuid(), Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getegid(), Size: 1}}
}

// overflowUID is the uid that a user namespace shows for users that it doesn't have. Source: the kernel's
// Documentation/admin-guide/sysctl/kernel.rst, "overflowgid & overflowuid"; it is the default.
const overflowUID = 65534

// IsTrusted reports whether a file of this owner is root's or this process's user's. In a user namespace the machine's root
// can't be told from other users: the file's directory has to be one that root alone writes to.
func IsTrusted(owner uint32) bool {
	return owner == 0 || owner == uint32(os.Geteuid()) || owner == overflowUID && IsInside()
}
