//go:build amd64 || arm64

package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// spawn starts a program with these words and this environment, which ends when the
// process of that number, its parent, does. It returns when the program runs, with its
// process, or with an error as the kernel gives it. Where the program could not be
// started, failed says why, and the process has ended.
//
//go:noescape
func spawn(path, argv, envp, parent uintptr, failed unsafe.Pointer) uintptr

// start starts work.program beside this process. Who can't wait for it, because its end
// is ignored, starts nothing.
//
//go:nosplit
func start(argv, envp uintptr) {
	work.child, work.failed = 0, 0
	answer := raw(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&work.action)), 8)
	if answer != 0 || work.action[0] != 0 {
		return
	}
	self := raw(unix.SYS_GETPID, 0, 0, 0, 0)
	pid := int(spawn(uintptr(unsafe.Pointer(&work.program.text)), argv, envp, self, unsafe.Pointer(&work.failed)))
	if pid <= 0 {
		return
	}
	if work.failed != 0 {
		raw(unix.SYS_WAIT4, uintptr(pid), 0, 0, 0)
		return
	}
	work.child = pid
}
