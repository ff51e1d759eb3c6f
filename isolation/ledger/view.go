package ledger

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// Phase is the state of a lease's holder.
type Phase string

const (
	// Starting: the process that took the lease lives, and no process runs in the container: it is
	// being made, or waits for a restart.
	Starting Phase = "starting"
	// Created: the container was made and never started. Only berth.Node.View reports it; the ledger
	// alone reports Running.
	Created Phase = "created"
	// Running: the container or the command runs, or may run.
	Running Phase = "running"
	// Ended: the holder is dead, and its devices are free.
	Ended Phase = "ended"
)

// Status is one lease and the state of its holder.
type Status struct {
	Lease
	Phase Phase `json:"status"`
	// Live is false if the holder is dead; the next acquire then frees the lease.
	Live bool `json:"live"`
	// Making: the process that took the lease lives, and may be just about to make
	// the container.
	Making bool `json:"-"`
	// Created is set if the container was created and never started. Only berth.Node.View sets it.
	Created bool `json:"created,omitempty"`
	// Note is a remark for people, such as the reason why the holder counts as dead.
	Note string `json:"note,omitempty"`
}

// Waiter is one request in the queue.
type Waiter struct {
	ID      string    `json:"id"`
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
	// Halted: the waiting process is stopped by a signal, traced, or in a frozen cgroup. Later
	// requests don't wait for it.
	Halted bool `json:"halted,omitempty"`
}

// View is the content of the ledger at one moment.
type View struct {
	Leases []Status `json:"leases"`
	Queue  []Waiter `json:"line"`
}

// View reads the ledger without a lock and without writing. A reserved lease whose container is
// found is shown as the next acquire will record it.
func (l *Ledger) View() (View, error) {
	me, err := l.world.Self()
	if err != nil {
		return View{}, err
	}
	st, err := l.readState()
	if err != nil {
		return View{}, err
	}
	return l.buildView(me, st), nil
}

// ReadLeases lists the recorded leases, including those of dead holders: it doesn't check whether holders
// live. It takes no lock.
func (l *Ledger) ReadLeases() ([]Lease, error) {
	st, err := l.readState()
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
func (l *Ledger) readState() (state, error) {
	st, found, err := l.store.readFull()
	if err != nil || found {
		return st, err
	}
	me, err := l.world.Self()
	if err != nil {
		return state{}, err
	}
	kept, _, err := l.readReceipts(me)
	for _, k := range kept {
		st.leases = append(st.leases, newRecord(k))
	}
	return st, err
}

func (l *Ledger) buildView(me self, st state) View {
	v := View{Leases: []Status{}, Queue: []Waiter{}}
	for _, r := range st.leases {
		s := Status{Lease: *r.v}
		verdict := judge(l.world, me, s.Lease)
		s.Live, s.Making, s.Note = verdict.live, verdict.making, verdict.why
		s.Phase = verdict.phase(l.world, me, s.Lease)
		if verdict.bound != nil {
			s.Lease = *verdict.bound
		}
		s.Devices = slices.Clone(s.Devices)
		v.Leases = append(v.Leases, s)
	}
	for _, w := range st.queue {
		if stillWaits(l.world, me, w.v) {
			v.Queue = append(v.Queue, Waiter{w.v.ID, w.v.Request, w.v.Owner, w.v.Since, isHalted(l.world, me, w.v)})
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
	case d.IsCDI():
		return "" // whether a CDI spec still has it is asked when it is used
	case !ok:
		return fmt.Sprintf("%s %s (%s) is gone", what, d.Index, d.UUID)
	case g.Lost != "":
		return fmt.Sprintf("%s %s (%s) is lost: %s", what, d.Index, d.UUID, g.Lost)
	}
	return ""
}

// Get returns a lease by its ID. It takes no lock.
func (l *Ledger) Get(id string) (Lease, bool, error) {
	all, err := l.ReadLeases()
	i := slices.IndexFunc(all, func(lease Lease) bool { return lease.ID == id })
	if i < 0 {
		return Lease{}, false, err
	}
	return all[i], true, nil
}

func (l Lease) clone() Lease {
	l.Devices = slices.Clone(l.Devices)
	return l
}

// sameContainer compares id and state directory: ids are unique only within a runtime's state
// directory.
func sameContainer(o Owner, container, root string) bool {
	return o.Container == container && filepath.Clean(o.RuntimeRoot) == filepath.Clean(root)
}
