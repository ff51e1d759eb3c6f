package ledger

import (
	"errors"
	"slices"
	"testing"
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

func leaseIDs(leases []Lease) (all []string) {
	for _, l := range leases {
		all = append(all, l.ID)
	}
	return all
}
