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
// cgroups below it. Without an entry nobody opens a guarded device but, if the admin allows it,
// the host's root. Nodes that aren't in the map of devices are left to other rules.
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
	"slices"

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

// Kind is what a cgroup's entry means.
type Kind uint32

// The kinds of entries.
const (
	// Lease opens the devices of the entry and no other guarded ones.
	Lease Kind = 1
	// Exempt opens every device.
	Exempt Kind = 2
	// Container opens nothing, not for root either.
	Container Kind = 3
)

// AnyMinor as the minor of a Number stands for every minor of the major that isn't listed itself.
const AnyMinor = anyMinor

// Number of a character device.
type Number struct{ Major, Minor uint32 }

// Entry of a cgroup.
type Entry struct {
	Kind    Kind
	Devices []Number // of a lease
}

// Rules are all that the program decides by.
type Rules struct {
	// Guarded and Open list devices. A device in neither is open, and so is one in both.
	Guarded, Open []Number
	// Cgroups are the entries, by the inode number of the cgroup's directory. None may be deeper
	// than 16 levels below the root of the tree.
	Cgroups map[uint64]Entry
	// RootAllowed lets the host's root open every device in cgroups without an entry.
	RootAllowed bool
	// PIDNamespace is a file such as /proc/1/ns/pid. A process in another PID namespace doesn't
	// count as the host's root.
	PIDNamespace string
}

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
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	old, err := find(dir)
	if err != nil && !errors.Is(err, ErrOff) {
		return err
	}
	if old != nil {
		defer func() { err = errors.Join(err, old.Close()) }()
	}
	next, err := load(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.Close()) }()
	if old != nil {
		if same, err := isSame(old.program, next.program); err != nil {
			return err
		} else if same {
			return old.Sync(r)
		}
	}
	options := link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: next.program, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
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
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	g, err := find(dir)
	if errors.Is(err, ErrOff) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: g.program, Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return fmt.Errorf("detach device guard from %s: %w", root, err)
	}
	return nil
}

// Open returns the program that is attached to the root of the cgroup v2 tree. The error Is ErrOff
// if there is none.
func Open(root string) (g *Guard, err error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	g, err = find(dir)
	return g, errors.Join(err, dir.Close())
}

// find returns the guard that is attached to this cgroup itself.
func find(dir *os.File) (*Guard, error) {
	attached, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupDevice})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrPermission) {
		err = errors.Join(ErrUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list device programs of %s: %w", dir.Name(), err)
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

// load makes new maps with these rules, and the program that reads them.
func load(r Rules) (g *Guard, err error) {
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

// isSame reports whether two programs have the same instructions. The kernel's tag ignores which
// maps they use.
func isSame(a, b *ebpf.Program) (bool, error) {
	ai, err := a.Info()
	if err != nil {
		return false, err
	}
	bi, err := b.Info()
	return err == nil && ai.Tag == bi.Tag, err
}

// Sync makes the maps equal to the rules. What becomes closed is closed first.
func (g *Guard) Sync(r Rules) error {
	want, err := r.toTables()
	if err != nil {
		return err
	}
	grants := func() error { return update(g.maps.Grants, want.grants) }
	for _, step := range []func() error{
		func() error { return prune(g.maps.Grants, want.grants) },
		func() error { return update(g.maps.Devices, want.devices) },
		func() error { return g.maps.Settings.Put(uint32(0), want.settings) },
		func() error { return prune(g.maps.Cgroups, want.cgroups) },
		grants,
		func() error { return update(g.maps.Cgroups, want.cgroups) },
		func() error { return prune(g.maps.Devices, want.devices) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("write device guard's rules: %w", err)
		}
	}
	return nil
}

// Read returns the rules in force. PIDNamespace is "".
func (g *Guard) Read() (r Rules, err error) {
	devices, err := list[number, uint32](g.maps.Devices)
	if err != nil {
		return r, err
	}
	for n, state := range devices {
		if state == deviceGuarded {
			r.Guarded = append(r.Guarded, Number(n))
		} else {
			r.Open = append(r.Open, Number(n))
		}
	}
	slices.SortFunc(r.Guarded, compareNumbers)
	slices.SortFunc(r.Open, compareNumbers)
	cgroups, err := list[uint64, uint32](g.maps.Cgroups)
	if err != nil {
		return r, err
	}
	r.Cgroups = map[uint64]Entry{}
	for id, kind := range cgroups {
		r.Cgroups[id] = Entry{Kind: Kind(kind)}
	}
	grants, err := list[grant, uint32](g.maps.Grants)
	if err != nil {
		return r, err
	}
	for k := range grants {
		if e, ok := r.Cgroups[k.Cgroup]; ok {
			e.Devices = append(e.Devices, Number{k.Major, k.Minor})
			slices.SortFunc(e.Devices, compareNumbers)
			r.Cgroups[k.Cgroup] = e
		}
	}
	var s settings
	if err := g.maps.Settings.Lookup(uint32(0), &s); err != nil {
		return r, fmt.Errorf("read device guard's settings: %w", err)
	}
	r.RootAllowed = s.RootAllowed != 0
	return r, nil
}

// tables are rules in the form of the maps.
type tables struct {
	devices  map[number]uint32
	cgroups  map[uint64]uint32
	grants   map[grant]uint32
	settings settings
}

func (r Rules) toTables() (t tables, err error) {
	t = tables{devices: map[number]uint32{}, cgroups: map[uint64]uint32{}, grants: map[grant]uint32{}}
	for _, n := range r.Guarded {
		t.devices[number(n)] = deviceGuarded
	}
	for _, n := range r.Open {
		t.devices[number(n)] = deviceOpen
	}
	for id, e := range r.Cgroups {
		t.cgroups[id] = uint32(e.Kind)
		for _, d := range e.Devices {
			t.grants[grant{id, d.Major, d.Minor}] = 1
		}
	}
	if !r.RootAllowed {
		return t, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(r.PIDNamespace, &st); err != nil {
		return t, &os.PathError{Op: "stat", Path: r.PIDNamespace, Err: err}
	}
	// The kernel compares with its own dev_t of 12 and 20 bits, not with that of stat(2).
	device := uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev))
	t.settings = settings{RootAllowed: 1, NamespaceDevice: device, NamespaceInode: st.Ino}
	return t, nil
}

// prune removes the keys that aren't wanted.
func prune[K comparable](m *ebpf.Map, want map[K]uint32) error {
	have, err := list[K, uint32](m)
	if err != nil {
		return err
	}
	for key := range have {
		if _, ok := want[key]; ok {
			continue
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// update writes what is wanted and isn't there.
func update[K comparable](m *ebpf.Map, want map[K]uint32) error {
	have, err := list[K, uint32](m)
	if err != nil {
		return err
	}
	for key, value := range want {
		if old, ok := have[key]; ok && old == value {
			continue
		}
		if err := m.Put(key, value); err != nil {
			return err
		}
	}
	return nil
}

// list reads a whole map.
func list[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	all := map[K]V{}
	var key K
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		all[key] = value
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", m, err)
	}
	return all, nil
}

func compareNumbers(a, b Number) int {
	if a.Major != b.Major {
		return int(a.Major) - int(b.Major)
	}
	return int(int64(a.Minor) - int64(b.Minor))
}
