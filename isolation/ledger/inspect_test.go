package ledger

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/gpu"
)

// TestInspect: a lease ends only once it was inspected, and the lock is free meanwhile.
func TestInspect(t *testing.T) {
	w := newFake()
	l := in(t, w)
	var inspected []string
	var fail error
	l.inspect = func(ctx context.Context, leases []Lease) error {
		if err := l.WithLeases(ctx, func([]Lease) error { return nil }); err != nil { // the lock is free
			t.Error(err)
		}
		inspected = append(inspected, leaseIDs(leases)...)
		return fail
	}
	pid := 50
	take := func(words string) (Lease, error) { // for a process that then ends
		a := ask(t, words)
		pid++
		a.Owner.Process = Process{PID: pid, Start: 5, Namespace: 7}
		w.procs[pid] = fakeProcess{start: 5}
		lease, err := l.Acquire(t.Context(), a)
		delete(w.procs, pid)
		w.uptime += reapInterval
		return lease, err
	}
	first, err := take("1")
	if err != nil {
		t.Fatal(err)
	}
	fail = errors.New("no")
	if _, err := take("1"); !errors.Is(err, fail) {
		t.Errorf("acquired without an inspection: %v", err)
	}
	if err := l.Release(t.Context(), first.ID); !errors.Is(err, fail) {
		t.Errorf("released without an inspection: %v", err)
	}
	if err := l.ReleaseIfDead(t.Context(), first.ID); !errors.Is(err, fail) {
		t.Errorf("released without an inspection: %v", err)
	}
	if err := l.Reap(t.Context()); !errors.Is(err, fail) {
		t.Errorf("reaped without an inspection: %v", err)
	}
	if all, err := l.ReadLeases(); err != nil || len(all) != 1 {
		t.Errorf("leases %v, %v", all, err)
	}
	fail, inspected = nil, nil
	if _, err := take("1"); err != nil || !slices.Contains(inspected, first.ID) {
		t.Errorf("%v, inspected %q", err, inspected)
	}
}

// TestInspectRenews: a device that the inspection finds in use isn't granted.
func TestInspectRenews(t *testing.T) {
	w := newFake()
	l := in(t, w)
	a := ask(t, "all")
	used := a.Inventory
	l.inspect = func(_ context.Context, leases []Lease) error {
		used.Occupied = []gpu.Occupied{{Device: leases[0].Devices[0]}}
		return nil
	}
	a.Renew = func(context.Context) (gpu.Inventory, error) { return used, nil }
	a.Owner.Process = Process{PID: 50, Start: 5, Namespace: 7}
	w.procs[50] = fakeProcess{start: 5}
	if _, err := l.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	delete(w.procs, 50)
	w.uptime += reapInterval
	a.Owner.Process = Process{PID: 1, Start: 1, Namespace: 7}
	if got, err := l.Acquire(t.Context(), a); !errors.Is(err, ErrBusy) {
		t.Errorf("granted %v, %v", got.Devices, err)
	}
}

// TestStaleInventory: a request whose inventory is older than the end of another inspection isn't granted by it.
func TestStaleInventory(t *testing.T) {
	l := in(t, newFake())
	a := ask(t, "all")
	used := a.Inventory
	used.Occupied = []gpu.Occupied{{Device: a.Inventory.GPUs[0].Device()}}
	stale := true
	a.Stale = func() bool { return stale }
	a.Renew = func(context.Context) (gpu.Inventory, error) {
		stale = false
		return used, nil
	}
	if got, err := l.Acquire(t.Context(), a); !errors.Is(err, ErrBusy) {
		t.Errorf("granted %v, %v", got.Devices, err)
	}
}
