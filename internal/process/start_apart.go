package process

import (
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartApart starts a command without the descriptors and the session keyring that this process was started with: a
// process that has a keyring may use the keys in it, as any user.
func StartApart(cmd *exec.Cmd) error {
	if err := CloseDescriptorsOnExec(); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has another keyring than the others
		// Without a name, which package unix can't express, the keyring is new.
		_, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
		switch errno {
		case 0, unix.ENOSYS, unix.EPERM: // no keyrings, or a filter keeps all of them away
			started <- cmd.Start()
		default:
			started <- os.NewSyscallError("keyctl", errno)
		}
	}()
	return <-started
}
