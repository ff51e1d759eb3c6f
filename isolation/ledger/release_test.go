package ledger

import (
	"errors"
	"testing"
	"time"
)

func TestReleaseIfDead(t *testing.T) {
	container := claim{pid: 60, in: "/berth/c"}
	for _, tt := range []struct {
		name  string
		world func(*fakeWorld)
		stays bool
	}{
		{"nothing left", func(*fakeWorld) {}, false},
		{"init is a zombie", func(w *fakeWorld) {
			w.procs[60], w.claims["c"] = fakeProcess{start: 500000, zombie: true}, []claim{container}
		}, false},
		{"the runtime's state is gone, init lives", func(w *fakeWorld) {
			w.procs[60], w.claims["c"] = fakeProcess{start: 500000}, []claim{container}
		}, true},
		{"nothing is known but a process in the cgroup", func(w *fakeWorld) { w.groups["/berth/c"] = 1 }, true},
		{"its maker lives", func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 5} }, true},
		{"nothing can be read", func(w *fakeWorld) { w.broken = errors.New("input/output error") }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFake()
			l := in(t, w)
			l.exitGrace = 10 * time.Millisecond
			a := ask(t, "1")
			a.Owner.Container, a.Owner.Cgroup, a.Owner.Process = "c", "/berth/c", Process{PID: 50, Start: 5, Namespace: 7}
			lease := mustAcquire(t, l, a)
			w.uptime = 2 * time.Hour
			tt.world(w)
			err := l.ReleaseIfDead(t.Context(), lease.ID)
			if errors.Is(err, ErrLive) != tt.stays || err != nil && !tt.stays {
				t.Errorf("error %v", err)
			}
			got, ok, err := l.Get(lease.ID)
			if ok != tt.stays || err != nil {
				t.Errorf("it stays: %v, %v", got, err)
			}
		})
	}
}

// ReleaseIfDead waits for a holder that was just killed; a missing lease is no error.
func TestReleaseWaitsForKilledHolder(t *testing.T) {
	tree, group := realCgroup(t)
	l := fresh(t)
	l.exitGrace = time.Minute
	a := ask(t, "6")
	a.Owner.Container, a.Owner.Cgroup, a.Owner.Process = "c1", group, gone(t, l)
	lease := mustAcquire(t, l, a)
	if !lease.Owner.OwnCgroup {
		t.Error("its cgroup was empty")
	}
	init := runIn(t, tree, group, "sleep", "1000")
	done := make(chan error)
	go func() { done <- l.ReleaseIfDead(t.Context(), lease.ID) }()
	select {
	case err := <-done:
		t.Fatalf("before its end: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	end(t, init)
	if err := <-done; err != nil {
		t.Error(err)
	}
	next := mustAcquire(t, l, a)
	if err := l.ReleaseIfDead(t.Context(), lease.ID); err != nil {
		t.Error(err)
	}
	if _, ok, err := l.Get(next.ID); !ok || err != nil {
		t.Errorf("the next life's: %v, %v", ok, err)
	}
}

// TestReleaseUncreated: a reserved lease ends although the process that took it lives, unless the container
// exists by now.
func TestReleaseUncreated(t *testing.T) {
	reserve := func(t *testing.T) (*Ledger, *fakeWorld, Lease) {
		w := newFake()
		w.procs[50] = fakeProcess{start: 900}
		l := in(t, w)
		a := ask(t, "1")
		a.Owner = Owner{EntryPoint: "podman", Container: "c", Engine: true, Process: Process{PID: 50}}
		return l, w, mustAcquire(t, l, a)
	}
	t.Run("no container", func(t *testing.T) {
		l, _, lease := reserve(t)
		if err := l.ReleaseIfDead(t.Context(), lease.ID); !errors.Is(err, ErrLive) {
			t.Errorf("while the engine may create it: %v", err)
		}
		for range 2 {
			if err := l.ReleaseUncreated(t.Context(), lease.ID); err != nil {
				t.Error(err)
			}
		}
		if err := l.Bind(t.Context(), lease.ID, Owner{Process: Process{PID: 1}}); !errors.Is(err, ErrNotFound) {
			t.Errorf("bind: %v", err)
		}
	})
	t.Run("bound", func(t *testing.T) {
		l, _, lease := reserve(t)
		if err := l.Bind(t.Context(), lease.ID, Owner{Process: Process{PID: 1}}); err != nil {
			t.Fatal(err)
		}
		if err := l.ReleaseUncreated(t.Context(), lease.ID); !errors.Is(err, ErrLive) {
			t.Error(err)
		}
	})
	t.Run("created", func(t *testing.T) {
		l, w, lease := reserve(t)
		w.procs[60] = fakeProcess{start: lease.Ticks + 1}
		w.claims["c"] = []claim{{pid: 60, recorded: lease.Ticks + 1}}
		if err := l.ReleaseUncreated(t.Context(), lease.ID); !errors.Is(err, ErrLive) {
			t.Error(err)
		}
	})
	t.Run("the engine lives on", func(t *testing.T) {
		l, w, lease := reserve(t)
		w.uptime += engineLimit + time.Second
		if err := l.ReleaseIfDead(t.Context(), lease.ID); err != nil {
			t.Error(err)
		}
	})
}
