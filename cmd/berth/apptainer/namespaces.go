package apptainer

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// namespaces are those that a command has besides those of its user and its mounts.
type namespaces struct {
	ipc, uts, pid, net bool
	hostname           string
}

func chooseNamespaces(c *cli.Context) (namespaces, error) {
	all := containsAll(c)
	network := readText(c, "network")
	n := namespaces{
		ipc: all || isOn(c, "ipc"), uts: isOn(c, "uts") || readText(c, "hostname") != "", pid: all || isOn(c, "pid"), net: isOn(c, "net") || network != "",
		hostname: readText(c, "hostname"),
	}
	if n.net && network != "none" {
		return n, errors.New("--net: the only network of its own is none: --network none")
	}
	return n, nil
}

// containsAll reports whether the command shares as little as possible with the host.
func containsAll(c *cli.Context) bool { return isOn(c, "containall") || isOn(c, "compat") }

// enterAll gives this thread the namespaces, except that of processes, in which it is already.
func (n namespaces) enterAll() error {
	flags := 0
	for flag, on := range map[int]bool{unix.CLONE_NEWIPC: n.ipc, unix.CLONE_NEWUTS: n.uts, unix.CLONE_NEWNET: n.net} {
		if on {
			flags |= flag
		}
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if n.net {
		if err := setLoopbackUp(); err != nil {
			return fmt.Errorf("set the interface lo up: %w", err)
		}
	}
	if n.hostname == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(n.hostname)); err != nil {
		return fmt.Errorf("set the host name %s: %w", n.hostname, err)
	}
	return nil
}

// setLoopbackUp sets the interface lo of this thread's network namespace up.
func setLoopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }() // nothing was written
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo)
}
