package deviceguard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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
const AnyMinor = ^uint32(0)

// Number of a character device. It is the key of the map of devices.
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

// Sync makes the maps equal to the rules. What becomes closed is closed first.
func (g *Guard) Sync(r Rules) error {
	want, err := r.toTables()
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return deleteUnwanted(g.maps.Grants, want.grants) },
		func() error { return putMissing(g.maps.Devices, want.devices) },
		func() error { return g.maps.Settings.Put(uint32(0), want.settings) },
		func() error { return deleteUnwanted(g.maps.Cgroups, want.cgroups) },
		func() error { return putMissing(g.maps.Grants, want.grants) },
		func() error { return putMissing(g.maps.Cgroups, want.cgroups) },
		func() error { return deleteUnwanted(g.maps.Devices, want.devices) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("write device guard's rules: %w", err)
		}
	}
	return nil
}

// Read returns the rules in force. PIDNamespace is "".
func (g *Guard) Read() (r Rules, err error) {
	devices, err := readMap[Number, uint32](g.maps.Devices)
	if err != nil {
		return r, err
	}
	for n, state := range devices {
		if state == deviceGuarded {
			r.Guarded = append(r.Guarded, n)
		} else {
			r.Open = append(r.Open, n)
		}
	}
	slices.SortFunc(r.Guarded, compareNumbers)
	slices.SortFunc(r.Open, compareNumbers)
	cgroups, err := readMap[uint64, uint32](g.maps.Cgroups)
	if err != nil {
		return r, err
	}
	r.Cgroups = map[uint64]Entry{}
	for id, kind := range cgroups {
		r.Cgroups[id] = Entry{Kind: Kind(kind)}
	}
	grants, err := readMap[grant, uint32](g.maps.Grants)
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
	devices  map[Number]uint32
	cgroups  map[uint64]uint32
	grants   map[grant]uint32
	settings settings
}

func (r Rules) toTables() (t tables, err error) {
	t = tables{devices: map[Number]uint32{}, cgroups: map[uint64]uint32{}, grants: map[grant]uint32{}}
	for _, n := range r.Guarded {
		t.devices[n] = deviceGuarded
	}
	for _, n := range r.Open {
		t.devices[n] = deviceOpen
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

// deleteUnwanted removes the keys that aren't wanted.
func deleteUnwanted[K comparable](m *ebpf.Map, want map[K]uint32) error {
	have, err := readMap[K, uint32](m)
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

// putMissing writes what is wanted and isn't there.
func putMissing[K comparable](m *ebpf.Map, want map[K]uint32) error {
	have, err := readMap[K, uint32](m)
	if err != nil {
		return err
	}
	for key, value := range want {
		if old, ok := have[key]; ok && old == value {
			continue
		}
		if err := putEntry(m, key, value); err != nil {
			return err
		}
	}
	return nil
}

// putEntry writes an entry. The kernel takes its memory from a reserve that it fills in the background, and
// the error ENOMEM of an empty one passes.
func putEntry[K comparable](m *ebpf.Map, key K, value uint32) error {
	for range 19 {
		if err := m.Put(key, value); !errors.Is(err, unix.ENOMEM) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return m.Put(key, value)
}

// readMap reads a whole map.
func readMap[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
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
	return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
}
