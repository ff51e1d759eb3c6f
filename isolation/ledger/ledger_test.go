package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
)

// node is eight H100s, of which the last two are cut into seven slices each.
func node() gpu.Inventory {
	var inv gpu.Inventory
	for i := range 8 {
		g := gpu.GPU{
			UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i), Index: i, Minor: i,
			PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i), Model: "NVIDIA H100 80GB HBM3", Memory: 80 << 30, NUMA: -1,
		}
		for s := range 7 {
			if g.MIG = i >= 6; g.MIG {
				g.Slices = append(g.Slices, gpu.Slice{
					UUID:  fmt.Sprintf("MIG-%08d-0000-0000-0000-%012d", i, s),
					Index: s, Profile: "1g.10gb", GI: s + 7, Memory: 10 << 30,
				})
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

func parseRequest(t testing.TB, words string) request.Request {
	t.Helper()
	r, err := request.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ask(t testing.TB, words string) Ask {
	return Ask{Owner: Owner{EntryPoint: "api"}, Request: parseRequest(t, words), Inventory: node()}
}

// fresh is a ledger of the test's own, on the real machine.
func fresh(t testing.TB) *Ledger {
	t.Helper()
	dir := t.TempDir()
	return Open(Options{Dir: filepath.Join(dir, "run"), Events: filepath.Join(dir, "log"), LockLimit: 5 * time.Second})
}

func mustAcquire(t testing.TB, l *Ledger, a Ask) Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustView(t testing.TB, l *Ledger) View {
	t.Helper()
	v, err := l.View()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAllOrNothing(t *testing.T) {
	l := fresh(t)
	if v := mustView(t, l); len(v.Leases) != 0 {
		t.Errorf("a ledger that isn't there holds %v", v)
	}
	a := mustAcquire(t, l, ask(t, "4"))
	_, err := l.Acquire(t.Context(), ask(t, "3"))
	var busy *BusyError
	if !errors.As(err, &busy) || !errors.Is(err, match.ErrBusy) {
		t.Fatalf("got %v", err)
	}
	want := BusyError{Request: "3", Wanted: 3, Free: 2, Total: 6, Holders: []Lease{a}}
	if diff := cmp.Diff(want, *busy); diff != "" {
		t.Error(diff)
	}
	if v := mustView(t, l); len(v.Leases) != 1 || len(v.Queue) != 0 {
		t.Errorf("half a lease: %+v", v)
	}
	if err := l.Release(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), a.ID); err != nil {
		t.Errorf("second release: %v", err)
	}
	mustAcquire(t, l, ask(t, "6"))
}

func TestParentAndSliceExcludeEachOther(t *testing.T) {
	l := fresh(t)
	slice := mustAcquire(t, l, ask(t, "6:3"))
	if _, err := l.Acquire(t.Context(), ask(t, "device=6")); !errors.Is(err, ErrBusy) {
		t.Errorf("the parent of a leased slice: %v", err)
	}
	mustAcquire(t, l, ask(t, "6:4"))
	mustAcquire(t, l, ask(t, "device=7"))
	if _, err := l.Acquire(t.Context(), ask(t, "7:0")); !errors.Is(err, ErrBusy) {
		t.Errorf("a slice of a leased GPU: %v", err)
	}
	gone := node()
	gone.GPUs[6].Slices = nil
	v := mustView(t, l).Annotate(gone)
	want := "MIG slice 6:3 (" + slice.Devices[0].UUID + ") is gone"
	if v.Leases[0].Note != want {
		t.Errorf("note %q, want %q", v.Leases[0].Note, want)
	}
}

// Leases share a NIC only if both say that it is shared, the recorded one as well.
func TestNICsAreShared(t *testing.T) {
	l := fresh(t)
	want := func(words string, alone bool) Ask {
		a := ask(t, words)
		a.Inventory.NICs = []gpu.NIC{{Name: "mlx5_0", Ports: []gpu.Port{{State: "ACTIVE"}}}}
		a.Inventory.ExclusiveNICs = alone
		return a
	}
	mustAcquire(t, l, want("1,nics=1", false))
	got := mustAcquire(t, l, want("1,nics=1", false))
	if len(got.Devices) != 2 || !got.Devices[1].IsNIC() || !got.Devices[1].Shared {
		t.Errorf("got %v", got.Devices)
	}
	if _, err := l.Acquire(t.Context(), want("1,nics=1", true)); !errors.Is(err, ErrBusy) {
		t.Errorf("alone on a NIC that others share: %v", err)
	}
	v := mustView(t, l).Annotate(node())
	if note := "NIC mlx5_0 (HCA-mlx5_0) is gone"; v.Leases[0].Note != note {
		t.Errorf("note %q, want %q", v.Leases[0].Note, note)
	}
}

func TestImpossibleRequests(t *testing.T) {
	l := fresh(t)
	for _, tt := range []struct {
		name, words string
		want        error
	}{
		{"more than the node has", "9", match.ErrTooMany},
		{"unknown model", "a100", match.ErrUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ask(t, tt.words)
			a.Wait = -1 // waiting can't help, so the call returns at once
			if _, err := l.Acquire(t.Context(), a); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	if _, err := os.Stat(l.store.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the ledger was touched: %v", err)
	}
}

func TestOneContainerOneLease(t *testing.T) {
	l := fresh(t)
	a := ask(t, "1")
	a.Owner.Container, a.Owner.RuntimeRoot, a.Owner.Bundle = "web", "/run/runc", "/b/web"
	lease := mustAcquire(t, l, a)
	if _, err := l.Acquire(t.Context(), a); !errors.Is(err, ErrHolds) {
		t.Errorf("a second lease for one container: %v", err)
	}
	b := a
	b.Owner.RuntimeRoot, b.Owner.Bundle = "/run/other", "/b/other"
	mustAcquire(t, l, b) // the same id, of another runtime's container

	for _, tt := range []struct {
		name string
		find func() (Lease, bool, error)
		ok   bool
		err  error
	}{
		{"by lease", func() (Lease, bool, error) { return l.Get(lease.ID) }, true, nil},
		{"by no lease", func() (Lease, bool, error) { return l.Get("000000000000") }, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok, err := tt.find()
			if ok != tt.ok || !errors.Is(err, tt.err) {
				t.Fatalf("got %v, %v, %v", got.ID, ok, err)
			}
			if diff := cmp.Diff(lease, got); ok && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// ReadLeases has the leases of View, without the state of their holders.
func TestReadLeases(t *testing.T) {
	l := fresh(t)
	if all, err := l.ReadLeases(); err != nil || len(all) != 0 {
		t.Fatalf("%v, %v", all, err)
	}
	first, second := mustAcquire(t, l, ask(t, "1")), mustAcquire(t, l, ask(t, "2"))
	all, err := l.ReadLeases()
	if diff := cmp.Diff([]Lease{first, second}, all); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// A late release for an earlier container of the same name doesn't end the later one's lease.
func TestLateRelease(t *testing.T) {
	l := fresh(t)
	a := ask(t, "1")
	a.Owner.Container = "web"
	first := mustAcquire(t, l, a)
	if err := l.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	second := mustAcquire(t, l, a)
	if err := l.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := l.Get(second.ID); !ok || err != nil || got.ID != second.ID {
		t.Errorf("the second life has %v, %v, %v", got.ID, ok, err)
	}
}

func TestInvalidOwners(t *testing.T) {
	l := fresh(t)
	for _, tt := range []struct {
		name  string
		owner Owner
		ok    bool
	}{
		{"plain", Owner{Container: "web-1_x.y"}, true},
		{"path as an id", Owner{Container: "../etc"}, false},
		{"parent as an id", Owner{Container: ".."}, false},
		{"escape sequence in an id", Owner{Container: "a\x1b[2J"}, false},
		{"newline in a bundle", Owner{Bundle: "/b\n/c"}, false},
		{"too long", Owner{Bundle: strings.Repeat("x", 5000)}, false},
		{"escape sequence in what is only shown", Owner{Name: "a\x1b[2J", Command: strings.Repeat("ü", 500)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ask(t, "1")
			a.Owner = tt.owner
			lease, err := l.Acquire(t.Context(), a)
			if (err == nil) != tt.ok {
				t.Fatalf("got %v", err)
			}
			if o := lease.Owner; strings.Contains(o.Name, "\x1b") || len([]rune(o.Command)) > maxShown {
				t.Errorf("control characters were kept: %q %q", o.Name, o.Command)
			}
			if err := l.Release(t.Context(), lease.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBind(t *testing.T) {
	l := fresh(t)
	lease := mustAcquire(t, l, ask(t, "1"))
	self, err := l.world.Self()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Bind(t.Context(), lease.ID, Owner{Process: Process{PID: os.Getpid()}, Cgroup: "/berth/x", Container: "web", Bundle: "/b/web"}); err != nil {
		t.Fatal(err)
	}
	got, ok, err := l.Get(lease.ID)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	want := lease
	want.State, want.Owner.Process, want.Owner.Cgroup = Bound, self.Process, "/berth/x"
	want.Owner.Container, want.Owner.Bundle = "web", "/b/web"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := l.Bind(t.Context(), "000000000000", Owner{Process: self.Process}); !errors.Is(err, ErrNotFound) {
		t.Errorf("bound what isn't there: %v", err)
	}
	if err := l.Bind(t.Context(), lease.ID, Owner{Process: Process{PID: 1 << 30}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bound to no process: %v", err)
	}
	if err := l.Bind(t.Context(), lease.ID, Owner{Process: self.Process, Cgroup: "/"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Bind(t.Context(), lease.ID, Owner{Process: self.Process, Container: "other", Bundle: "/b/other"}); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := l.Get(lease.ID); !cmp.Equal(got, want) {
		t.Errorf("the root counts as a container's cgroup, or a second name as its: %s", cmp.Diff(want, got))
	}
}

func TestCancelled(t *testing.T) {
	l := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Acquire(ctx, ask(t, "1")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestLockHeldByAnother(t *testing.T) {
	l := fresh(t)
	mustAcquire(t, l, ask(t, "1"))
	locked, unlock, free := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		free <- l.store.withLock(t.Context(), time.Second, func() error {
			close(locked)
			<-unlock
			return nil
		})
	}()
	<-locked
	other := Open(Options{Dir: l.store.dir, Events: filepath.Dir(l.events.path), LockLimit: 50 * time.Millisecond})
	_, err := other.Acquire(t.Context(), ask(t, "1"))
	var held *LockError
	if !errors.As(err, &held) || !errors.Is(err, ErrLocked) || held.Holders[0].PID != os.Getpid() {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := other.Acquire(ctx, ask(t, "1")); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrLocked) {
		t.Errorf("got %v", err)
	}
	if v := mustView(t, other); len(v.Leases) != 1 { // a reader takes no lock
		t.Errorf("got %v", v)
	}
	close(unlock)
	if err := <-free; err != nil {
		t.Error(err)
	}
	mustAcquire(t, other, ask(t, "1")) // calls that gave up have released a lock that they got late
}

// A call that changes nothing writes nothing.
func TestIdleCallsWriteNothing(t *testing.T) {
	l := fresh(t)
	mustAcquire(t, l, ask(t, "6"))
	before, err := os.ReadFile(l.store.ledgerPath())
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.Stat(l.store.ledgerPath())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), "000000000000"); err != nil {
		t.Error(err)
	}
	if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	mustView(t, l)
	after, err := os.ReadFile(l.store.ledgerPath())
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("content changed: %v", err)
	}
	if now, err := os.Stat(l.store.ledgerPath()); err != nil || !os.SameFile(stat, now) {
		t.Errorf("file changed: %v", err)
	}
}
