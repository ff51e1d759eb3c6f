package network

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// installFilter puts a seccomp filter on all threads.
func installFilter(p *unix.SockFprog) error {
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(p))); errno != 0 {
		return errno
	}
	return nil
}
