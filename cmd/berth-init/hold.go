//go:build amd64 || arm64

package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What holds the namespaces of a gang is among processes of strangers, some of which may
// trace others: it has nothing that is worth having.
//
//nolint:gochecknoglobals // there is no other memory before Go's runtime
var held struct {
	header  unix.CapUserHeader
	data    [2]unix.CapUserData
	filter  [8]unix.SockFilter
	program struct { // struct sock_fprog, whose pointer mustn't be one to Go
		length uint64
		filter uintptr
	}
}

// become gives up all that this process doesn't need to hold namespaces: its root becomes an
// empty directory that nobody else has, its capabilities go, nobody without CAP_SYS_PTRACE
// can look at it, and it can make no other system calls than those of hold. at is a
// directory to mount on. It ends the process where that fails.
//
//go:nosplit
func become(at unsafe.Pointer) {
	dot, slash, tmpfs := text(".\x00"), text("/\x00"), text("tmpfs\x00")
	must(raw(unix.SYS_MOUNT, 0, slash, 0, unix.MS_REC|unix.MS_PRIVATE))
	must(raw(unix.SYS_MOUNT, tmpfs, uintptr(at), tmpfs, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC))
	must(raw(unix.SYS_CHDIR, uintptr(at), 0, 0, 0))
	must(raw(unix.SYS_PIVOT_ROOT, dot, dot, 0, 0))
	must(raw(unix.SYS_UMOUNT2, dot, unix.MNT_DETACH, 0, 0))
	must(raw(unix.SYS_CHDIR, slash, 0, 0, 0))
	raw(unix.SYS_PRCTL, unix.PR_SET_NAME, text("berth-init\x00"), 0, 0) // and not the descriptor that it was started from
	must(raw(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0))
	h := &held
	h.header.Version = unix.LINUX_CAPABILITY_VERSION_3
	must(raw(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h.header)), uintptr(unsafe.Pointer(&h.data[0])), 0, 0))
	must(raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0))
	must(raw(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(allow()), 0))
}

// allow makes the filter: the calls of hold, and no error but EPERM from all others. Another
// architecture's calls have other numbers.
//
//go:nosplit
func allow() unsafe.Pointer {
	const (
		number, architecture = 0, 4 // of struct seccomp_data
		load                 = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal                = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		give                 = unix.BPF_RET | unix.BPF_K
		refuse               = 0x00050000 | uint32(unix.EPERM) // SECCOMP_RET_ERRNO
		pass                 = 0x7fff0000                      // SECCOMP_RET_ALLOW
	)
	f := &held.filter
	f[0].Code, f[0].K = load, architecture
	f[1].Code, f[1].K, f[1].Jf = equal, audit, 4
	f[2].Code, f[2].K = load, number
	f[3].Code, f[3].K, f[3].Jt = equal, unix.SYS_RT_SIGTIMEDWAIT, 3
	f[4].Code, f[4].K, f[4].Jt = equal, unix.SYS_WAIT4, 2
	f[5].Code, f[5].K, f[5].Jt = equal, unix.SYS_EXIT_GROUP, 1
	f[6].Code, f[6].K = give, refuse
	f[7].Code, f[7].K = give, pass
	held.program.length, held.program.filter = uint64(len(f)), uintptr(unsafe.Pointer(&f[0]))
	return unsafe.Pointer(&held.program)
}

// hold waits for one signal, and does nothing but bury the dead.
//
//go:nosplit
func hold() {
	if raw(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&memory.all)), 0, 0, setSize) == int(unix.SIGCHLD) {
		reap(0)
	}
}

//go:nosplit
func must(result int) {
	if result < 0 {
		exit(codeOwn)
	}
}

//go:nosplit
func text(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s))) }
