package ledger

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// Status is one lease as it is now.
type Status struct {
	Lease
	// Live is false when the holder is gone: the next acquire frees it.
	Live bool `json:"live"`
	// Making: the process that took the lease lives, and may be just about to make
	// the container.
	Making bool `json:"-"`
	// Created: its container was made and never started. The ledger itself doesn't look.
	Created bool `json:"created,omitempty"`
	// Note says what is remarkable, e.g. why it isn't live.
	Note string `json:"note,omitempty"`
}

// Waiter is one request in the queue.
type Waiter struct {
	ID      string    `json:"id"`
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
}

// View is what the ledger says at one moment.
type View struct {
	Leases []Status `json:"leases"`
	Line   []Waiter `json:"line"`
}

// View reads; it never writes, and it takes no lock. A reserved lease whose
// container is found is shown as the next acquire will record it.
func (l *Ledger) View() (View, error) {
	me, err := l.world.Self()
	if err != nil {
		return View{}, err
	}
	st, err := l.readState(me)
	if err != nil {
		return View{}, err
	}
	return l.buildView(me, st), nil
}

// Held lists the leases as they are written down, of dead holders too: nobody is asked
// who lives. It takes no lock.
func (l *Ledger) Held() ([]Lease, error) {
	me, err := l.world.Self()
	if err != nil {
		return nil, err
	}
	st, err := l.readState(me)
	if err != nil {
		return nil, err
	}
	all := make([]Lease, 0, len(st.leases))
	for _, r := range st.leases {
		all = append(all, r.v.clone())
	}
	return all, nil
}

// readState reads the state without the lock.
func (l *Ledger) readState(me self) (state, error) {
	st, found, err := l.store.readFull()
	if err != nil || found {
		return st, err
	}
	kept, _, err := l.readReceipts(me)
	for _, k := range kept {
		st.leases = append(st.leases, newRecord(k))
	}
	return st, err
}

func (l *Ledger) buildView(me self, st state) View {
	v := View{Leases: []Status{}, Line: []Waiter{}}
	for _, r := range st.leases {
		s := Status{Lease: *r.v}
		verdict := judge(l.world, me, s.Lease)
		s.Live, s.Making, s.Note = verdict.live, verdict.making, verdict.why
		if verdict.bound != nil {
			s.Lease = *verdict.bound
		}
		s.Devices = slices.Clone(s.Devices)
		v.Leases = append(v.Leases, s)
	}
	for _, w := range st.queue {
		if stillWaits(l.world, me, w.v) {
			v.Line = append(v.Line, Waiter{w.v.ID, w.v.Request, w.v.Owner, w.v.Since})
		}
	}
	return v
}

// Annotate adds to the notes which leased devices the node doesn't have any
// more, or can't use: a slice that was destroyed, a GPU that fell off the bus.
func (v View) Annotate(inv gpu.Inventory) View {
	v.Leases = slices.Clone(v.Leases)
	for i := range v.Leases {
		s := &v.Leases[i]
		for _, d := range s.Devices {
			if why := whyUnusable(inv, d); why != "" {
				if s.Note != "" {
					s.Note += "; "
				}
				s.Note += why
			}
		}
	}
	return v
}

func whyUnusable(inv gpu.Inventory, d gpu.Device) string {
	what := "GPU"
	if d.Parent != "" {
		what = "MIG slice"
	}
	if d.IsNIC() {
		if _, ok := inv.NIC(d); !ok {
			return fmt.Sprintf("NIC %s (%s) is gone", d.Index, d.UUID)
		}
		return ""
	}
	switch g, _, ok := inv.Lookup(d.UUID); {
	case d.CDI():
		return "" // whether a CDI spec still has it is asked when it is used
	case !ok:
		return fmt.Sprintf("%s %s (%s) is gone", what, d.Index, d.UUID)
	case g.Lost != "":
		return fmt.Sprintf("%s %s (%s) is lost: %s", what, d.Index, d.UUID, g.Lost)
	}
	return ""
}

// ErrAmbiguous: several leases fit; the caller has to say which it means.
var ErrAmbiguous = errors.New("more than one lease fits")

// Find returns the lease of a container, by the id and the state directory that
// its runtime knows it by; a runtimeRoot of "" fits any, and then the error Is
// ErrAmbiguous if several do. It takes no lock. To release what an engine's delete
// ends, find the lease before the delete is made and release it by its ID after:
// so the next life of the same container is safe.
func (l *Ledger) Find(container, runtimeRoot string) (Lease, bool, error) {
	return l.findBy(func(o Owner) bool {
		return sameContainer(o, container, runtimeRoot) || runtimeRoot == "" && o.Container == container
	})
}

// FindBundle returns the lease of a container by its id and bundle, which is what
// OCI hooks are told. It takes no lock.
func (l *Ledger) FindBundle(container, bundle string) (Lease, bool, error) {
	return l.findBy(func(o Owner) bool {
		return o.Container == container && filepath.Clean(o.Bundle) == filepath.Clean(bundle)
	})
}

// Get returns a lease by its ID. It takes no lock.
func (l *Ledger) Get(id string) (Lease, bool, error) {
	me, err := l.world.Self()
	if err != nil {
		return Lease{}, false, err
	}
	st, err := l.readState(me)
	i := slices.IndexFunc(st.leases, func(r record) bool { return r.id == id })
	if err != nil || i < 0 {
		return Lease{}, false, err
	}
	return st.leases[i].v.clone(), true, nil
}

func (l *Ledger) findBy(fits func(Owner) bool) (Lease, bool, error) {
	me, err := l.world.Self()
	if err != nil {
		return Lease{}, false, err
	}
	st, err := l.readState(me)
	if err != nil {
		return Lease{}, false, err
	}
	var found []Lease
	for _, r := range st.leases {
		if fits(r.v.Owner) {
			found = append(found, r.v.clone())
		}
	}
	switch len(found) {
	case 0:
		return Lease{}, false, nil
	case 1:
		return found[0], true, nil
	}
	return Lease{}, false, fmt.Errorf("find lease of container %s: %w", found[0].Owner.Container, ErrAmbiguous)
}

func (l Lease) clone() Lease {
	l.Devices = slices.Clone(l.Devices)
	return l
}

// sameContainer compares what makes a container one: ids are only unique within
// a runtime's state directory.
func sameContainer(o Owner, container, root string) bool {
	return o.Container == container && filepath.Clean(o.RuntimeRoot) == filepath.Clean(root)
}
