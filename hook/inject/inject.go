// Package inject brings edits into a container that a runtime is just creating:
// its namespaces exist, its root file system is mounted, its first process waits
// for the hooks, and nothing of the image has run.
//
// It is the second way of applying what edits.Edits.Apply writes into a spec, for
// those who come too late for that. Every path of the image is resolved by the
// kernel below the container's root and used as a descriptor: sources are cloned
// on the host (open_tree), a thread of its own enters the container's mount
// namespace, and what was cloned is moved onto descriptors there (move_mount). No
// path is used again after it was looked at, and none of the container's is ever
// the source of a mount.
//
// The runtime hasn't changed the root of that namespace yet: the new root is found
// at the path that the spec gives, and has to be the directory that the host sees
// there, mounted. Files are made only in the container's own file systems: in its
// root, and in what isn't mounted on the host as well. Where a user has bound a
// directory of the host (its /dev, for one), nothing is made or removed.
//
// What a hook can't do to a process that runs already is left out: environment,
// capabilities, groups, annotations, hooks to be taken out, and limits that the
// spec sets itself. Needs Linux 5.12.
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
	"github.com/berth-gpu/berth/internal/netdev"
)

// ErrCannot: the edits hold what only a change of the spec could bring, and without
// which the container would have half of what it was given.
var ErrCannot = errors.New("can't be done by a hook")

// Container is one that is being created.
type Container struct {
	// PID of its first process, in the pid namespace of the caller.
	PID int
	// Root is the host's path of its root file system, which is trusted.
	Root string
	// Spec is what the runtime makes the container of.
	Spec *specs.Spec
	// Proc and Dev are where procfs and the host's nodes are, "" for /proc and /dev.
	Proc, Dev string
	// SetRules replaces the device rules of the container's cgroup by the list.
	SetRules func([]edits.Rule) error
}

// Apply does the edits to a container, device rules first and network devices last:
// those are not moved for a container that is to be given up. It is for once: a second
// time puts a second mount over the first. On an error the container is to be given
// up; all that was done ends with its namespaces and its cgroup.
func Apply(ctx context.Context, c Container, e edits.Edits) (err error) {
	if err := checkEdits(e); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := c.openScene()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if len(e.Nodes) > 0 { // it will be asked for, and to ask from inside costs a thread
		if s.hosts, err = s.readFileSystems(); err != nil {
			return err
		}
	}
	if err := c.applyRules(e); err != nil {
		return err
	}
	sources, err := cloneSources(e.Mounts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(sources)) }()
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

// MoveRDMA moves RDMA devices and their interfaces into the container, all or none. What
// is in its network namespace already stays.
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

// checkEdits refuses what a container wouldn't notice to be missing until it is too late.
func checkEdits(e edits.Edits) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if len(e.Hooks) > 0 {
		return fmt.Errorf("run %s: %w, for the runtime has read its list of hooks", e.Hooks[0].Path, ErrCannot)
	}
	return nil
}

// applyRules are those that the spec would have with the edits in it.
func (c Container) applyRules(e edits.Edits) error {
	opens := slices.ContainsFunc(e.Nodes, func(n edits.Node) bool { return n.Access != "" })
	if e.Rules == nil && !opens {
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

// applyInside runs on a thread inside the container's mount namespace.
func (s *scene) applyInside(e edits.Edits, sources []source) error {
	if err := s.findRoot(); err != nil {
		return err
	}
	for _, r := range e.RemoveMounts {
		if err := s.removeMount(r); err != nil {
			return fmt.Errorf("take out mount %s: %w", r.Destination, err)
		}
	}
	for _, path := range e.RemoveNodes {
		if !slices.ContainsFunc(e.Nodes, func(n edits.Node) bool { return n.Path == path }) {
			if err := s.removeNode(path); err != nil {
				return fmt.Errorf("take out node %s: %w", path, err)
			}
		}
	}
	for _, n := range e.Nodes {
		if err := s.makeNode(n); err != nil {
			return fmt.Errorf("make node %s: %w", n.Path, err)
		}
	}
	for _, src := range sources {
		if err := s.mountSource(src); err != nil {
			return fmt.Errorf("mount %s: %w", src.Destination, err)
		}
	}
	for _, path := range e.MaskedPaths {
		if err := s.maskPath(path); err != nil {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	return nil
}

// scene is the container as it is held by descriptors.
type scene struct {
	Container
	pidfd    int
	foreign  bool              // it has a user namespace of its own
	outside  *os.File          // its root, as the host sees it
	root     *os.File          // its root, mounted where it is
	rootID   uint64            // of that mount
	isHosts  bool              // the root is the host's own
	hosts    map[string]bool   // file systems that the host has mounted; nil until it is needed
	mounted  map[uint64]string // which of the container's mounts is of which
	hostRoot unix.Stat_t
}

// openScene takes hold of the container's process, and makes sure that it is one whose
// mounts are its own.
func (c Container) openScene() (*scene, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Dev == "" {
		c.Dev = "/dev"
	}
	s := &scene{Container: c}
	var err error
	if s.pidfd, err = unix.PidfdOpen(c.PID, 0); err != nil {
		return nil, fmt.Errorf("open process %d of the container: %w", c.PID, err)
	}
	if err := s.checkNamespaces(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// checkNamespaces reads what has to be known of the host and of the process, which is the same
// one as long as it lives.
func (s *scene) checkNamespaces() (err error) {
	if s.outside, err = inroot.OpenRoot(s.Root); err != nil {
		return err
	}
	if err := unix.Stat("/", &s.hostRoot); err != nil {
		return &fs.PathError{Op: "stat", Path: "/", Err: err}
	}
	shared, err := s.sharesNamespace("mnt")
	if err != nil {
		return err
	}
	if shared {
		return errors.New("the container has no mount namespace of its own: what a hook brings would be everybody's")
	}
	if shared, err = s.sharesNamespace("user"); err != nil {
		return err
	}
	s.foreign = !shared
	if err := unix.PidfdSendSignal(s.pidfd, 0, nil, 0); err != nil {
		return fmt.Errorf("process %d of the container: %w", s.PID, err)
	}
	return nil
}

// sharesNamespace says that the container's namespace of this kind is the caller's.
func (s *scene) sharesNamespace(kind string) (bool, error) {
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

func (s *scene) close() error {
	err := unix.Close(s.pidfd)
	for _, f := range []*os.File{s.outside, s.root} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// setLimits sets limits of the first process, which it keeps when it becomes the
// task. Those that the spec sets as well are the runtime's: it sets them later.
func (s *scene) setLimits(spec *specs.Spec, limits []specs.POSIXRlimit) error {
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
