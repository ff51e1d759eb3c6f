package ledger

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGranted: Granted is called before a lease's end is written, and after a new lease is written.
// So no device is ever open for a lease that isn't in the ledger.
func TestGranted(t *testing.T) {
	w := newFake()
	l := in(t, w)
	var fail error
	var told []string
	l.granted = func(granted []Lease) error {
		held, err := l.ReadLeases()
		if err != nil {
			t.Error(err)
		}
		for _, g := range granted {
			if !slices.ContainsFunc(held, func(h Lease) bool { return h.ID == g.ID }) {
				t.Errorf("lease %s is told, and isn't in the ledger", g.ID)
			}
		}
		told = leaseIDs(granted)
		return fail
	}
	a := mustAcquire(t, l, ask(t, "1"))
	if want := []string{a.ID}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	b := mustAcquire(t, l, ask(t, "2"))
	if want := []string{a.ID, b.ID}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	fail = errors.New("no")
	if err := l.Release(t.Context(), a.ID); !errors.Is(err, fail) {
		t.Errorf("release while devices can't be closed: %v", err)
	}
	if _, ok, err := l.Get(a.ID); !ok || err != nil {
		t.Errorf("the lease is gone: %v", err)
	}
	fail = nil
	if err := l.Release(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if want := []string{b.ID}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	err := l.WithLeases(t.Context(), func(all []Lease) error {
		if want := []string{b.ID}; !slices.Equal(leaseIDs(all), want) {
			t.Errorf("%q, want %q", leaseIDs(all), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGrantedFails: a lease is withdrawn if Granted fails with it. It stays only if Granted fails without it, too.
func TestGrantedFails(t *testing.T) {
	for _, tt := range []struct {
		name     string
		failures int
		left     int
	}{
		{"once", 1, 1},
		{"again without the lease", 2, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := in(t, newFake())
			mustAcquire(t, l, ask(t, "1"))
			fail := errors.New("no")
			l.granted = func([]Lease) error {
				if tt.failures--; tt.failures >= 0 {
					return fail
				}
				return nil
			}
			if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, fail) {
				t.Errorf("acquire: %v", err)
			}
			if all, err := l.ReadLeases(); len(all) != tt.left || err != nil {
				t.Errorf("%d leases, want %d, %v", len(all), tt.left, err)
			}
			receipts, err := os.ReadDir(l.store.receiptsDir())
			if len(receipts) != tt.left || err != nil {
				t.Errorf("%d receipts, want %d, %v", len(receipts), tt.left, err)
			}
		})
	}
}

// TestLedgerNotWritten: if the ledger can't be written, as on a full disk, the receipt of the refused lease is
// removed: it would count as a lease of a lost ledger.
func TestLedgerNotWritten(t *testing.T) {
	l := in(t, newFake())
	blocker := l.store.ledgerPath() + ".tmp"
	if err := os.MkdirAll(blocker, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, unix.EISDIR) {
		t.Errorf("acquire: %v", err)
	}
	if all, err := l.ReadLeases(); len(all) != 0 || err != nil {
		t.Errorf("leases: %v, %v", leaseIDs(all), err)
	}
	if err := os.Remove(blocker); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, l, ask(t, "all"))
}

func leaseIDs(leases []Lease) (all []string) {
	for _, l := range leases {
		all = append(all, l.ID)
	}
	return all
}
