// Package inject applies edits to a container that a runtime is creating: its namespaces
// exist, its root file system is mounted, its init waits for the hooks, and nothing of
// the image has run.
//
// It is the second way of applying edits, for hooks that run after the runtime has read
// the spec; edits.Edits.Apply writes the same into a spec. The kernel resolves every
// path of the image below the container's root, and the result is used as a descriptor.
// Sources are cloned on the host (open_tree). A thread of its own enters the container's
// mount namespace, and moves the clones onto descriptors there (move_mount). No path is
// used again after it was checked, and no path of the container is the source of a mount at
// another place: a read-only path is mounted over itself, by one descriptor. The unsafe equivalent, mount(2) below the joined path of the root, follows
// links that the image has planted.
//
// The runtime has not changed the root of that namespace yet. The new root is at the
// path that the spec names, and has to be the directory that the host sees there,
// mounted. Files are created only in the container's own file systems: in its root, and
// in file systems that the host has not mounted as well. Where a user has bound a
// directory of the host (its /dev, for example), nothing is created or removed.
//
// A hook cannot change environment, capabilities, groups, annotations, other hooks and
// limits that the spec sets itself: the runtime applies these. Needs Linux 5.12
// (mount_setattr).
package inject

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/mounttree"
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/internal/userns"
)

// ErrCannot means that the edits need a change of the spec, which a hook can't make, and that the
// device would not work without it.
var ErrCannot = errors.New("can't be done by a hook")

// Container is a container that is being created.
type Container struct {
	// PID of its init, in the pid namespace of the caller. 0 means that the caller is in the container's mount namespace itself, as a
	// program that a launcher starts there. Then no edit may be about its process or its network.
	PID int
	// Outside is, without a PID, a process in the mount namespace that the launcher was started in, 0 for process 1. A launcher can be in another namespace than
	// process 1, such as a job's or a service's with a /tmp of its own.
	Outside int
	// Root is the path of its root file system on the host, which is trusted.
	Root string
	// Spec is the spec from which the runtime creates the container.
	Spec *specs.Spec
	// Proc and Dev are where procfs and the host's nodes are, "" for /proc and /dev.
	Proc, Dev string
	// SetRules replaces the device rules of the container's cgroup. nil leaves them as they are.
	SetRules func([]edits.Rule) error
}

// Apply applies edits to a container, device rules first and network devices last: these
// are not moved into a container that is refused. Apply is not idempotent: a second call
// mounts a second time. After an error the container has to be given up; what was
// applied ends with its namespaces and its cgroup.
func Apply(ctx context.Context, c Container, e edits.Edits) (err error) {
	if err := checkEdits(e); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := c.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if len(e.Nodes) > 0 { // read here, because readMounts would need another thread for it
		if s.hosts, err = s.readFileSystems(); err != nil {
			return err
		}
	}
	if err := c.applyRules(e); err != nil {
		return err
	}
	sources, err := mounttree.CloneBinds(e.Mounts)
	if errors.Is(err, mounttree.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrCannot, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mounttree.CloseAll(sources)) }()
	if err := s.runInside(func() error { return s.applyInside(e, sources) }); err != nil {
		return err
	}
	if err := s.setLimits(c.Spec, e.Rlimits); err != nil {
		return err
	}
	if err := s.MoveNetDevices(netdev.SortDevices(e.NetDevices)); err != nil {
		return err
	}
	return s.MoveRDMA(e.RDMALinks, e.RDMAInterfaces)
}

// MoveRDMA moves RDMA devices and their interfaces into the container, all or none.
// Devices that are in its network namespace already stay there.
func (c Container) MoveRDMA(links, interfaces []string) (err error) {
	all := slices.Concat(links, interfaces)
	if len(all) == 0 {
		return nil
	}
	n, err := netdev.OpenNamespace(cmp.Or(c.Proc, "/proc"), c.PID)
	if err != nil {
		return fmt.Errorf("RDMA device %s: %w", all[0], err)
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return n.MoveInRDMA(links, interfaces)
}

// MoveNetDevices moves network devices of the host into the container, all or none.
func (c Container) MoveNetDevices(devices []netdev.Device) (err error) {
	if len(devices) == 0 {
		return nil
	}
	n, err := netdev.OpenNamespace(cmp.Or(c.Proc, "/proc"), c.PID)
	if err != nil {
		return fmt.Errorf("network device %s: %w", devices[0].Host, err)
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return n.MoveIn(devices)
}

// checkEdits refuses edits that no hook can apply, and whose absence the container would
// notice too late.
func checkEdits(e edits.Edits) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if len(e.Hooks) > 0 {
		return fmt.Errorf("add hook %s: %w, because the runtime has read the spec's hooks", e.Hooks[0].Path, ErrCannot)
	}
	return nil
}

// applyRules sets the device rules that the spec would have with the edits in it.
func (c Container) applyRules(e edits.Edits) error {
	opens := slices.ContainsFunc(e.Nodes, func(n edits.Node) bool { return n.Access != "" })
	if c.SetRules == nil || e.Rules == nil && !opens {
		return nil
	}
	have := &specs.LinuxResources{}
	if l := c.Spec.Linux; l != nil && l.Resources != nil {
		have.Devices = l.Resources.Devices
	}
	changed := &specs.Spec{Linux: &specs.Linux{Resources: have}}
	if err := (edits.Edits{Rules: e.Rules, Nodes: e.Nodes}).Apply(changed); err != nil {
		return err
	}
	var rules []edits.Rule
	for _, r := range changed.Linux.Resources.Devices {
		rules = append(rules, edits.FromSpec(r))
	}
	if err := c.SetRules(rules); err != nil {
		return fmt.Errorf("set device rules: %w", err)
	}
	return nil
}

// applyInside runs on a thread in the container's mount namespace.
func (s *openContainer) applyInside(e edits.Edits, sources []mounttree.Bind) error {
	if err := s.findRoot(); err != nil {
		return err
	}
	for _, r := range e.RemoveMounts {
		if err := s.removeMount(r); err != nil {
			return fmt.Errorf("remove mount %s: %w", r.Destination, err)
		}
	}
	for _, path := range e.RemoveNodes {
		if !slices.ContainsFunc(e.Nodes, func(n edits.Node) bool { return n.Path == path }) {
			if err := s.removeNode(path); err != nil {
				return fmt.Errorf("remove node %s: %w", path, err)
			}
		}
	}
	for _, n := range e.Nodes {
		if err := s.makeNode(n); err != nil {
			return fmt.Errorf("create node %s: %w", n.Path, err)
		}
	}
	for _, src := range sources {
		if err := s.mountSource(src); err != nil {
			return fmt.Errorf("mount %s: %w", src.Destination, err)
		}
	}
	for _, path := range e.ReadonlyPaths {
		if err := s.makeReadOnly(path); err != nil {
			return fmt.Errorf("make %s read-only: %w", path, err)
		}
	}
	for _, path := range e.MaskedPaths {
		if err := s.maskPath(path); err != nil {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	return nil
}

// openContainer is a container whose init, root and namespaces are held open by descriptors.
type openContainer struct {
	Container
	pidfd    int
	userNS   bool              // the container has a user namespace of its own
	outside  *os.File          // the container's root, opened on the host
	root     *os.File          // the container's root, opened in its mount namespace
	rootID   uint64            // mount id of root
	isHosts  bool              // the container's root is the host's own
	hosts    map[string]bool   // devices of the host's mounted file systems; nil until it is needed
	mounted  map[uint64]string // device of each of the container's mounts; nil until it is needed
	hostRoot unix.Stat_t
}

// open opens the container's init, and checks that the container has a mount namespace of its own.
func (c Container) open() (*openContainer, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Dev == "" {
		c.Dev = "/dev"
	}
	s := &openContainer{Container: c}
	if err := unix.Stat("/", &s.hostRoot); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: "/", Err: err}
	}
	var err error
	check := s.checkNamespaces
	if c.PID == 0 {
		s.pidfd, check = -1, s.checkOwnNamespace
	} else if s.pidfd, err = unix.PidfdOpen(c.PID, 0); err != nil {
		return nil, fmt.Errorf("open process %d of the container: %w", c.PID, err)
	}
	if s.outside, err = inroot.OpenRoot(s.Root); err == nil {
		err = check()
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// checkNamespaces reads what has to be known of the namespaces of host and container.
// The last check makes sure that all was read of one process: the pid has not been
// reused.
func (s *openContainer) checkNamespaces() error {
	shared, err := s.sharesNamespace("mnt")
	if err != nil {
		return err
	}
	if shared {
		return errNoNamespace
	}
	if shared, err = s.sharesNamespace("user"); err != nil {
		return err
	}
	s.userNS = !shared
	if err := unix.PidfdSendSignal(s.pidfd, 0, nil, 0); err != nil {
		return fmt.Errorf("process %d of the container: %w", s.PID, err)
	}
	return nil
}

var errNoNamespace = errors.New("the container has no mount namespace of its own: every process of the host would get its devices")

// checkOwnNamespace is checkNamespaces for a container whose mount namespace is the caller's. It is the host's if process 1 or Outside has
// the same mounts: each mount has a number of its own. The namespaces of process 1 itself can be hidden from root, too. In a user namespace
// there is nothing to check: the kernel lets none mount anything on the host.
func (s *openContainer) checkOwnNamespace() error {
	if s.userNS = userns.IsInside(); s.userNS {
		return nil
	}
	_, own, err := readMountinfo(s.Proc + "/thread-self/mountinfo")
	if err != nil {
		return err
	}
	_, outside, err := s.readOutside()
	if err == nil && sharesKey(own, outside) {
		err = errNoNamespace
	}
	return err
}

// sharesNamespace reports whether the container's namespace of this kind is the
// caller's.
func (s *openContainer) sharesNamespace(kind string) (bool, error) {
	var own, its unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{
		s.Proc + "/thread-self/ns/" + kind:              &own,
		fmt.Sprintf("%s/%d/ns/%s", s.Proc, s.PID, kind): &its,
	} {
		if err := unix.Stat(path, st); err != nil {
			return false, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	return own.Ino == its.Ino && own.Dev == its.Dev, nil
}

func (s *openContainer) close() error {
	var err error
	if s.pidfd >= 0 {
		err = unix.Close(s.pidfd)
	}
	for _, f := range []*os.File{s.outside, s.root} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// setLimits sets resource limits of the container's init, which it keeps when it execs
// the user's command. Limits that the spec sets too are left to the runtime, which sets
// them later.
func (s *openContainer) setLimits(spec *specs.Spec, limits []specs.POSIXRlimit) error {
	for _, l := range limits {
		theirs := func(h specs.POSIXRlimit) bool { return h.Type == l.Type }
		if spec.Process != nil && slices.ContainsFunc(spec.Process.Rlimits, theirs) {
			continue
		}
		resource, ok := rlimitResources()[strings.TrimPrefix(l.Type, "RLIMIT_")]
		if !ok {
			return fmt.Errorf("set limit %s: unknown", l.Type)
		}
		if err := unix.Prlimit(s.PID, resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("set limit %s: %w", l.Type, err)
		}
	}
	return nil
}

func rlimitResources() map[string]int {
	return map[string]int{
		"AS": unix.RLIMIT_AS, "CORE": unix.RLIMIT_CORE, "CPU": unix.RLIMIT_CPU, "DATA": unix.RLIMIT_DATA,
		"FSIZE": unix.RLIMIT_FSIZE, "LOCKS": unix.RLIMIT_LOCKS, "MEMLOCK": unix.RLIMIT_MEMLOCK,
		"MSGQUEUE": unix.RLIMIT_MSGQUEUE, "NICE": unix.RLIMIT_NICE, "NOFILE": unix.RLIMIT_NOFILE,
		"NPROC": unix.RLIMIT_NPROC, "RSS": unix.RLIMIT_RSS, "RTPRIO": unix.RLIMIT_RTPRIO,
		"RTTIME": unix.RLIMIT_RTTIME, "SIGPENDING": unix.RLIMIT_SIGPENDING, "STACK": unix.RLIMIT_STACK,
	}
}
