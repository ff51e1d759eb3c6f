package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// The actions of the model.

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"acquire":       func(t *rapid.T) { m.attempt(t, m.newTask(t), false, false) },
		"join the line": func(t *rapid.T) { m.attempt(t, m.newTask(t), true, true) },
		"try again": func(t *rapid.T) {
			k := m.pickTask(t, m.line, func(*task) bool { return true })
			m.attempt(t, k, true, rapid.Bool().Draw(t, "stay"))
		},
		"look": m.checkLook,
		"waiter leaves": func(t *rapid.T) {
			k := m.pickTask(t, m.line, func(*task) bool { return true })
			m.line = slices.DeleteFunc(m.line, func(o *task) bool { return o == k })
			m.runsUntilKilled(t, func() { m.l.leaveQueue(context.Background(), k.ticket.ID) })
			delete(m.w.procs, k.maker)
		},
		"waiter is killed": func(t *rapid.T) {
			k := m.pickTask(t, m.line, func(*task) bool { return true })
			m.line = slices.DeleteFunc(m.line, func(o *task) bool { return o == k })
			delete(m.w.procs, k.maker)
		},
		"container starts": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(k *task) bool { return k.maker != 0 && k.init == 0 && !k.bound && !k.leaving })
			cgroup := k.ask.Owner.Cgroup
			k.init, k.others = m.spawn(t, cgroup), rapid.IntRange(0, 2).Draw(t, "others")
			m.w.claims[k.ask.Owner.Container] = []claim{{pid: k.init, in: cgroup, own: cgroup}}
			m.sync(k)
		},
		"bind": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(k *task) bool { return k.init != 0 && k.maker != 0 && !k.leaving })
			died := m.runsUntilKilled(t, func() {
				if err := m.l.Bind(context.Background(), k.lease.ID, Owner{Process: Process{PID: k.init}}); err != nil {
					t.Fatal(err)
				}
			})
			got, ok, err := m.l.Get(k.lease.ID)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if k.bound = got.State == Bound; died {
				delete(m.w.procs, k.maker)
				k.maker = 0
			}
		},
		"maker ends": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(k *task) bool { return k.maker != 0 })
			if p := m.w.procs[k.maker]; rapid.Bool().Draw(t, "as a zombie") {
				m.w.procs[k.maker] = fakeProcess{start: p.start, zombie: true, cgroup: p.cgroup}
			} else {
				delete(m.w.procs, k.maker)
			}
			k.maker = 0
		},
		"init ends": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(k *task) bool { return k.init != 0 })
			if p := m.w.procs[k.init]; rapid.Bool().Draw(t, "as a zombie") {
				m.w.procs[k.init] = fakeProcess{start: p.start, zombie: true, cgroup: p.cgroup}
			} else {
				delete(m.w.procs, k.init)
			}
			k.init = 0
			m.sync(k)
		},
		"cgroup empties": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(k *task) bool { return k.others > 0 })
			k.others = 0
			m.sync(k)
		},
		"release": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(*task) bool { return true })
			m.runsUntilKilled(t, func() {
				if err := m.l.Release(context.Background(), k.lease.ID); err != nil {
					t.Fatal(err)
				}
			})
			if _, ok, err := m.l.Get(k.lease.ID); err != nil {
				t.Fatal(err)
			} else if k.leaving = ok; !ok {
				m.removeTask(k)
			}
		},
		"release if dead": func(t *rapid.T) {
			k := m.pickTask(t, m.tasks, func(k *task) bool { return !k.leaving })
			lived := m.alive(k)
			died := m.runsUntilKilled(t, func() {
				if err := m.l.ReleaseIfDead(context.Background(), k.lease.ID); (err != nil) != lived || err != nil && !errors.Is(err, ErrLive) {
					t.Fatalf("the task lives: %v; released: %v", lived, err)
				}
			})
			if _, ok, err := m.l.Get(k.lease.ID); err != nil {
				t.Fatal(err)
			} else if !lived && !ok && !died {
				m.removeTask(k)
			} else if lived != ok && !died {
				t.Fatalf("the task lives: %v; the ledger has its lease: %v", lived, ok)
			}
		},
		"late release": func(t *rapid.T) {
			if len(m.old) == 0 {
				t.Skip("no old lease")
			}
			if err := m.l.Release(context.Background(), rapid.SampledFrom(m.old).Draw(t, "lease")); err != nil {
				t.Fatal(err)
			}
		},
		"torn write": func(t *rapid.T) {
			at := rapid.SampledFrom([]string{m.l.store.ledgerPath() + ".tmp", m.l.store.receiptPath("0123456789ab") + ".tmp"}).Draw(t, "file")
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(`{"berth":`), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"ledger is damaged": m.damageAndRepair,
		"reboot": func(t *rapid.T) {
			if rapid.IntRange(0, 5).Draw(t, "really") != 0 {
				t.Skip("not now")
			}
			m.w.me.boot += "+"
			m.w.procs, m.w.groups = map[int]fakeProcess{1: {start: 1}}, map[string]int{"/user": 1}
			m.w.uptime, m.tasks, m.line = time.Minute, nil, nil
		},
		"": m.check,
	}
}

// removeTask removes a task whose lease was released; its processes may continue.
func (m *model) removeTask(k *task) {
	m.old = append(m.old, k.lease.ID)
	m.tasks = slices.DeleteFunc(m.tasks, func(o *task) bool { return o == k })
}

// checkLook checks that checkTurn never reports a request as hopeless that an attempt would grant.
func (m *model) checkLook(t *rapid.T) {
	k := m.pickTask(t, m.line, func(*task) bool { return true })
	if m.l.checkTurn(k.ask, k.ticket.ID, true) == nil {
		t.Skip("worth an attempt")
	}
	lease, err := m.l.attempt(context.Background(), k.ask, &k.ticket, true)
	if !errors.Is(err, ErrBusy) {
		t.Fatalf("the look saw no hope, and the attempt gave %v, %v", lease.ID, err)
	}
}

// damageAndRepair damages the ledger, checks that it is refused, and repairs it. Tickets are lost and return
// when their owners check next, here in their order: until an earlier one has returned, it can be
// overtaken.
func (m *model) damageAndRepair(t *rapid.T) {
	if _, err := os.Stat(m.l.store.ledgerPath()); err != nil {
		t.Skip("no ledger yet")
	}
	if rapid.Bool().Draw(t, "removed") {
		if err := os.Remove(m.l.store.ledgerPath()); err != nil {
			t.Fatal(err)
		}
	} else {
		if err := os.WriteFile(m.l.store.ledgerPath(), []byte("garbage"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := m.l.Acquire(context.Background(), m.newTask(t).ask); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("acquired with a damaged ledger: %v", err)
		}
		steps := []string{"", "locked", "moved aside", "ledger written"}
		m.dying = rapid.SampledFrom(steps).Draw(t, "repair killed at")
		func() {
			defer func() {
				if r := recover(); r != nil && r != any(killed{}) {
					panic(r)
				}
			}()
			if _, err := m.l.Repair(context.Background()); err != nil {
				t.Fatal(err)
			}
		}()
		m.dying = ""
		if _, err := m.l.Repair(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	m.listed = map[string]bool{} // leases of dead holders are dropped
	for _, k := range slices.Clone(m.line) {
		m.attempt(t, k, true, true)
	}
}
