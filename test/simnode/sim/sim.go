// Package sim makes a simulated GPU server out of the machine it runs on.
//
// Enter turns the calling thread into the first process of a node: a mount and
// UTS namespace of its own in which /dev, /proc/driver, /proc/devices and /sys
// show the accelerators of a [Profile], a driver with an NVML of our own lies
// where a driver lies, and /run, /var/lib/berth and /etc/berth are fresh. The
// kernel keeps no driver behind the nodes: opening one gives ENXIO where device
// rules allow it and EPERM where they don't.
//
// A node is its namespaces and nothing else: it keeps no files outside of them
// but the cache of compiled libraries, and it ends with its last process. (The
// sockets of the driver's services are listened on from outside, until the node's
// first process ends.) Cgroups
// that were made inside are real ones and stay if their maker leaves them.
//
// What a node's state is can be changed while it runs, from inside and from
// outside: [Control].
package sim

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options are the differences of a node from its profile. The zero value is the machine's own
// cgroups and a driver in / with all nodes made.
type Options struct {
	// Cgroup is "host" (as it is; the same as ""), "v1" or "v2".
	Cgroup string
	// Driver is "stub" (compiled here; the same as ""), "debian" (NVIDIA's own
	// user-space files, see [Fetch]) or "auto": those if they are in the cache.
	Driver string
	// DriverRoot is the root of the driver's files; "" is "/".
	DriverRoot string
	// BareNodes leaves the accelerators' nodes out of /dev, as after a boot before any program has
	// made them.
	BareNodes bool
	// NoUVM leaves the module nvidia-uvm unloaded; modprobe and nvidia-modprobe load it.
	NoUVM bool
}

func (o Options) check() error {
	if !slices.Contains([]string{"", "host", "v1", "v2"}, o.Cgroup) {
		return fmt.Errorf("unknown cgroup mode %q: it is host, v1 or v2", o.Cgroup)
	}
	if !slices.Contains([]string{"", "auto", "stub", "debian"}, o.Driver) {
		return fmt.Errorf("unknown driver %q: it is auto, stub or debian", o.Driver)
	}
	return nil
}

// ErrCommand is why a command can't be run in a node that is otherwise complete.
var ErrCommand = errors.New("can't run command")

// Exec replaces the program by argv, run inside a new node. It returns only if
// that isn't possible.
func Exec(profile string, o Options, argv, env []string) error {
	runtime.LockOSThread() // the namespaces are this thread's until exec
	n, err := enter(profile, o)
	if err != nil {
		return err
	}
	env = append(env, "SIMNODE_DIR="+Dir)
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCommand, err)
	}
	announce(n)
	if err := syscall.Exec(program, argv, env); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCommand, program, err)
	}
	return nil
}

func announce(n Node) {
	p := n.Blueprint()
	kind := "stub driver"
	if n.NVIDIA {
		kind = "NVIDIA's user-space driver, NVML simulated"
	}
	gpus := "no GPU"
	if len(p.GPUs) > 0 {
		gpus = fmt.Sprintf("%d × %s", len(p.GPUs), p.GPUs[0].Model.Name)
	}
	fmt.Fprintf(os.Stderr, "simnode: %s is simulated: %s, driver %s (%s), cgroup %s\n", hostname(n.Profile), gpus, n.Driver, kind, n.Cgroup)
}

func hostname(profile string) string { return "simulated-" + profile }

// enter makes the namespaces and all that is in them. Namespaces are the
// calling thread's: it must be locked, and exec next.
func enter(profile string, o Options) (Node, error) {
	p, err := LookupProfile(profile)
	if err != nil {
		return Node{}, err
	}
	if err := o.check(); err != nil {
		return Node{}, err
	}
	if os.Geteuid() != 0 {
		return Node{}, errors.New("a simulated node needs root: it mounts and makes device nodes")
	}
	d, err := prepareDriver(o.Driver, p.Driver)
	if err != nil {
		return Node{}, err
	}
	n, err := newNode(p, o)
	if err != nil {
		return Node{}, err
	}
	control, err := startServices()
	if err != nil {
		return Node{}, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return Node{}, fmt.Errorf("make mount and UTS namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return Node{}, fmt.Errorf("make mounts private: %w", err)
	}
	if err := n.build(p, o, d); err != nil {
		return n, errors.Join(err, control.Close())
	}
	return n, p.listen(control)
}

func newNode(p Profile, o Options) (Node, error) {
	n := Node{
		ID: hostname(p.Name) + "-" + strings.ToLower(rand.Text()[:6]), Profile: p.Name, Cgroup: o.Cgroup,
		Driver: p.Driver, DriverRoot: o.DriverRoot, Bare: o.BareNodes, UVM: !o.NoUVM,
	}
	if n.Cgroup == "" {
		n.Cgroup = "host"
	}
	if n.DriverRoot == "" {
		n.DriverRoot = "/"
	}
	var err error
	if n.Majors, err = freeMajors(); err != nil {
		return n, err
	}
	if n.CPUs, err = shareCPUs(p.Nodes()); err != nil {
		return n, err
	}
	for i, g := range p.GPUs {
		mig, placed, err := g.Model.layOut(g.MIG)
		if err != nil {
			return n, fmt.Errorf("profile %s, GPU %d: %w", p.Name, i, err)
		}
		n.GPUs = append(n.GPUs, GPUState{MIG: mig, Instances: placed})
	}
	return n, nil
}

// build mounts the node's trees, in the private namespace.
func (n *Node) build(p Profile, o Options, d driverFiles) error {
	if err := unix.Sethostname([]byte(hostname(p.Name))); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"/run", mountRun},
		{"/etc and /var/lib", func() error { return n.mountState(p, d) }},
		{"/dev", func() error { return n.mountDev(p) }},
		{"/sys", func() error { return n.mountSys(p) }},
		{"/proc", func() error { return n.mountProc(p) }},
		{"cgroups", func() error { return mountCgroups(o.Cgroup) }},
		{"driver", func() error { return n.mountDriver(d) }},
		{"state", func() error { return n.write() }},
		{"NVML", func() error { return n.writeNVML(d.nvml) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("simulate %s: %w", s.name, err)
		}
	}
	return nil
}
