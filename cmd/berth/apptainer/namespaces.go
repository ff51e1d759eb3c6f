package apptainer

import (
	"fmt"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// namespaces are those that a command has besides those of its user and its mounts.
type namespaces struct {
	ipc, uts bool
	hostname string
}

func chooseNamespaces(c *cli.Context) namespaces {
	return namespaces{ipc: c.Bool("ipc") || isSet("IPC"), uts: c.Bool("uts") || c.IsSet("hostname"), hostname: c.String("hostname")}
}

// enterAll gives this thread the namespaces.
func (n namespaces) enterAll() error {
	flags := 0
	for flag, on := range map[int]bool{unix.CLONE_NEWIPC: n.ipc, unix.CLONE_NEWUTS: n.uts} {
		if on {
			flags |= flag
		}
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if n.hostname == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(n.hostname)); err != nil {
		return fmt.Errorf("set the host name %s: %w", n.hostname, err)
	}
	return nil
}
