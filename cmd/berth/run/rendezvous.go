package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/gang/rendezvous"
)

// nobody is the user and the group of the process that serves the ranks' store.
const nobody = 65534

// dropPrivileges changes this process to user and group nobody, without supplementary groups
// and capabilities. That can't be undone. In a user namespace without nobody this process
// stays root and loses the capabilities.
func dropPrivileges() error {
	err := syscall.Setgid(nobody)
	if err == nil {
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("leave all groups: %w", err)
		}
		err = syscall.Setuid(nobody)
	}
	switch {
	case errors.Is(err, unix.EINVAL): // the user namespace lacks the group or the user; the machine's first has all
		return dropCapabilities()
	case err != nil:
		return fmt.Errorf("become user and group %d: %w", nobody, err)
	}
	return nil
}

// dropCapabilities takes all capabilities from all threads of this process, and from what it executes.
func dropCapabilities() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return fmt.Errorf("forbid new privileges: %w", errno)
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0); errno != 0 { //nolint:gosec // the call's arguments
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}

// RendezvousCommand is the hidden verb that serves the store in which a gang's ranks exchange
// their addresses. A gang's monitor starts it with the listening socket as descriptor 3; the
// process drops its privileges.
func RendezvousCommand() *cli.Command {
	return &cli.Command{
		Name: "rendezvous", Hidden: true, HideHelp: true, OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			var scopes map[string]int
			if err := json.Unmarshal([]byte(c.Args().First()), &scopes); err != nil {
				return verb.WrongCommandLine(c, "only a gang's monitor starts berth rendezvous")
			}
			l, err := net.FileListener(os.NewFile(3, "listener"))
			if err != nil {
				return verb.WithCode(verb.ExitBerth, errors.New("only a gang's monitor starts berth rendezvous"))
			}
			if err := dropPrivileges(); err != nil {
				return verb.WithCode(verb.ExitBerth, err)
			}
			if err := rendezvous.Serve(c.Context, l, scopes); err != nil {
				return verb.WithCode(verb.ExitBerth, fmt.Errorf("serve the ranks' store: %w", err))
			}
			return nil
		},
	}
}
