// Package deviceguard closes device nodes to every process on the host that holds no lease.
//
// It attaches one BPF device program to the root of the cgroup v2 tree ([Install]). At each open
// of a guarded device, the kernel runs it with the cgroup of the process that opens. The program
// reads four maps:
//
//	devices   {major, minor} → guarded or open; a minor of all ones means all other minors
//	cgroups   {cgroup id} → lease, exempt, or container
//	grants    {cgroup id, major, minor} → the lease of this cgroup has this device
//	settings  whether the host's root needs a lease
//
// The deepest cgroup with an entry decides: a lease opens its own devices and no others, also in
// cgroups below it. A process without an entry can't open a guarded device, unless it is the
// host's root and the admin allows that. Nodes that aren't in the map of devices are left to other
// rules.
//
// The maps are a projection of the ledger, and [Guard.Sync] makes them equal to [Rules]. No
// process keeps them: as long as the program is attached, the kernel holds program and maps, and
// [Open] finds them by asking the cgroup. Callers of Install, Sync and Remove hold the ledger's
// lock. After a process was killed in Sync, the maps open no more than either the old or the new
// rules do.
//
// It needs Linux 6.1 and CAP_SYS_ADMIN (or CAP_BPF and CAP_NET_ADMIN in the first user namespace).
package deviceguard

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ErrOff: the guard isn't installed.
var ErrOff = errors.New("the device guard is off")

// ErrUnavailable: this process may not use BPF, or the kernel lacks it. Whether the guard is on
// isn't known then.
var ErrUnavailable = errors.New("BPF can't be used")

// programName is the program's name in bpftool. Open finds the program by it.
const programName = "berth_guard"

// Sizes of the maps. Entries are allocated when they are needed.
const (
	maxDevices = 1 << 12
	maxCgroups = 1 << 14
	maxGrants  = 1 << 16
)

// maps of the program, which the kernel keeps while the program is attached.
type maps struct {
	Devices, Cgroups, Grants, Settings *ebpf.Map
}

func (m maps) Close() error {
	var errs []error
	for _, one := range []*ebpf.Map{m.Devices, m.Cgroups, m.Grants, m.Settings} {
		if one != nil {
			errs = append(errs, one.Close())
		}
	}
	return errors.Join(errs...)
}

// Guard is the installed program. It is a resource: Close it. It is not safe for use by several
// goroutines.
type Guard struct {
	program *ebpf.Program
	maps    maps
}

// Close releases the descriptors. The program stays attached.
func (g *Guard) Close() error { return errors.Join(g.program.Close(), g.maps.Close()) }

// Install attaches the program to the cgroup v2 tree whose root is the directory root, with these
// rules. If this program is attached already, only the rules change. Another version of it is
// replaced in one step, so that nothing is open in between.
func Install(root string, r Rules) (err error) {
	dir, err := openDir(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(dir)) }()
	old, err := findAttached(dir, root)
	if err != nil && !errors.Is(err, ErrOff) {
		return err
	}
	if old != nil {
		defer func() { err = errors.Join(err, old.Close()) }()
	}
	next, err := loadGuard(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.Close()) }()
	if old != nil {
		if same, err := haveSameInstructions(old.program, next.program); err != nil {
			return err
		} else if same {
			return old.Sync(r)
		}
	}
	options := link.RawAttachProgramOptions{
		Target: dir, Program: next.program, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	}
	if old != nil {
		options.Anchor = link.ReplaceProgram(old.program)
	}
	if err := link.RawAttachProgram(options); err != nil {
		return fmt.Errorf("attach device guard to %s: %w", root, err)
	}
	return nil
}

// Remove detaches the program. It is no error if none is attached.
func Remove(root string) (err error) {
	dir, err := openDir(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(dir)) }()
	g, err := findAttached(dir, root)
	if errors.Is(err, ErrOff) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: dir, Program: g.program, Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return fmt.Errorf("detach device guard from %s: %w", root, err)
	}
	return nil
}

// Open returns the program that is attached to the root of the cgroup v2 tree. The error Is ErrOff
// if there is none.
func Open(root string) (g *Guard, err error) {
	dir, err := openDir(root)
	if err != nil {
		return nil, err
	}
	g, err = findAttached(dir, root)
	return g, errors.Join(err, unix.Close(dir))
}

// openDir opens a directory without an os.File, for which Go's runtime would set up its poller: each
// start of a container opens two.
func openDir(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// findAttached returns the guard that is attached to this cgroup itself, the directory root.
func findAttached(dir int, root string) (*Guard, error) {
	attached, err := link.QueryPrograms(link.QueryOptions{Target: dir, Attach: ebpf.AttachCGroupDevice})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrPermission) {
		err = errors.Join(ErrUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list device programs of %s: %w", root, err)
	}
	for _, a := range attached.Programs {
		program, err := ebpf.NewProgramFromID(a.ID)
		if errors.Is(err, os.ErrNotExist) {
			continue // detached meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("open device program %d: %w", a.ID, err)
		}
		info, err := program.Info()
		if err == nil && info.Name == programName {
			g := &Guard{program: program}
			if g.maps, err = openMaps(info); err == nil {
				return g, nil
			}
		}
		if err := errors.Join(err, program.Close()); err != nil {
			return nil, fmt.Errorf("read device program %d: %w", a.ID, err)
		}
	}
	return nil, ErrOff
}

// openMaps opens the maps that the program uses.
func openMaps(info *ebpf.ProgramInfo) (m maps, err error) {
	ids, _ := info.MapIDs()
	for _, id := range ids {
		one, err := ebpf.NewMapFromID(id)
		if err != nil {
			return m, errors.Join(fmt.Errorf("open map %d: %w", id, err), m.Close())
		}
		info, err := one.Info()
		if err != nil {
			return m, errors.Join(fmt.Errorf("read map %d: %w", id, err), one.Close(), m.Close())
		}
		switch info.Name {
		case "berth_devices":
			m.Devices = one
		case "berth_cgroups":
			m.Cgroups = one
		case "berth_grants":
			m.Grants = one
		case "berth_settings":
			m.Settings = one
		default:
			if err := one.Close(); err != nil {
				return m, errors.Join(err, m.Close())
			}
		}
	}
	if m.Devices == nil || m.Cgroups == nil || m.Grants == nil || m.Settings == nil {
		return m, errors.Join(errors.New("maps are missing"), m.Close())
	}
	return m, nil
}

// loadGuard makes new maps with these rules, and the program that reads them.
func loadGuard(r Rules) (g *Guard, err error) {
	m, err := newMaps()
	if err != nil {
		return nil, err
	}
	g = &Guard{maps: m}
	if err := g.Sync(r); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	// bpf_get_ns_current_pid_tgid is there since Linux 6.10.
	for _, namespaces := range []bool{true, false} {
		g.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: programName, Type: ebpf.CGroupDevice, Instructions: newInstructions(m, namespaces), License: "Apache-2.0",
		})
		if err == nil {
			return g, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("load device guard: %w", err), m.Close())
}

func newMaps() (m maps, err error) {
	for _, t := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&m.Devices, ebpf.MapSpec{Name: "berth_devices", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: maxDevices, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.Cgroups, ebpf.MapSpec{Name: "berth_cgroups", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: maxCgroups, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.Grants, ebpf.MapSpec{Name: "berth_grants", Type: ebpf.Hash, KeySize: 16, ValueSize: 4, MaxEntries: maxGrants, Flags: unix.BPF_F_NO_PREALLOC}},
		{&m.Settings, ebpf.MapSpec{Name: "berth_settings", Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1}},
	} {
		if *t.to, err = ebpf.NewMap(&t.spec); err != nil {
			return m, errors.Join(fmt.Errorf("make map %s: %w", t.spec.Name, err), m.Close())
		}
	}
	return m, nil
}

// haveSameInstructions reports whether two programs have the same instructions. The kernel's tag ignores which
// maps they use.
func haveSameInstructions(a, b *ebpf.Program) (bool, error) {
	ai, err := a.Info()
	if err != nil {
		return false, err
	}
	bi, err := b.Info()
	return err == nil && ai.Tag == bi.Tag, err
}
