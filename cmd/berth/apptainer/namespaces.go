package apptainer

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/catatonit"
	"github.com/berth-gpu/berth/launcher/enter"
)

// namespaces are those that a command has besides those of its user and its mounts.
type namespaces struct {
	pid, ipc, uts, net bool
	hostname           string
	noInit             bool
}

// containsAll reports whether the container is to share little with the host.
func containsAll(c *cli.Context) bool {
	return c.Bool("containall") || c.Bool("compat") || isSet("CONTAINALL")
}

func chooseNamespaces(c *cli.Context) (n namespaces, err error) {
	all := containsAll(c)
	n = namespaces{
		pid: (all || c.Bool("pid") || isSet("PID")) && (c.Bool("pid") || !c.Bool("no-pid")), ipc: all || c.Bool("ipc") || isSet("IPC"),
		uts: c.Bool("uts") || c.IsSet("hostname"), net: c.Bool("net"), hostname: c.String("hostname"), noInit: c.Bool("no-init") || c.Bool("compat"),
	}
	network := c.String("network")
	switch {
	case network != "" && network != "none":
		err = fmt.Errorf("--network %s: there is the host's network, and with --net --network none no network", network)
	case n.net && network == "":
		err = errors.New("--net: networks of their own are for root; --net --network none has no network")
	case !n.net && network != "":
		err = errors.New("--network none needs --net")
	}
	return n, err
}

// enter gives this thread the namespaces. Its child processes alone are in that of processes.
func (n namespaces) enter() error {
	flags := 0
	for flag, on := range map[int]bool{unix.CLONE_NEWPID: n.pid, unix.CLONE_NEWIPC: n.ipc, unix.CLONE_NEWUTS: n.uts, unix.CLONE_NEWNET: n.net} {
		if on {
			flags |= flag
		}
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if n.net {
		if err := startLoopback(); err != nil {
			return err
		}
	}
	if n.hostname != "" {
		if err := unix.Sethostname([]byte(n.hostname)); err != nil {
			return fmt.Errorf("set the host name %s: %w", n.hostname, err)
		}
	}
	return nil
}

// startLoopback starts the interface lo of a new network namespace. Source: netdevice(7).
func startLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("start the loopback interface: %w", err)
	}
	defer func() { _ = unix.Close(s) }() // nothing was written
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("start the loopback interface: %w", err)
	}
	return nil
}

// initPath is the container's first process with --pid, which reaps others and passes signals on.
const initPath = "/dev/.init"

// mountInit mounts the program of the first process, and returns its words.
func (n namespaces) mountInit(box *enter.Container) ([]string, error) {
	if !n.pid || n.noInit {
		return nil, nil
	}
	program, err := catatonit.Find()
	if err != nil {
		return nil, fmt.Errorf("--pid: %w, or add --no-init", err)
	}
	return []string{initPath, "--"}, box.Mount(bind(program, initPath, "nosuid", "nodev", "ro"))
}

// kernelMounts are the mounts of procfs and sysfs.
func (n namespaces) kernelMounts() (proc, sys specs.Mount) {
	proc, sys = bind("/proc", "/proc"), bind("/sys", "/sys")
	if n.pid {
		proc = specs.Mount{Type: "proc", Destination: "/proc", Options: []string{"nosuid", "nodev"}}
	}
	if n.net {
		sys = specs.Mount{Type: "sysfs", Destination: "/sys", Options: []string{"nosuid", "nodev", "noexec"}}
	}
	return proc, sys
}
