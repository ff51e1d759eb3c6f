package ledger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/testutil"
)

// startWaiting starts an Acquire that has to wait, and returns when its ticket is in the queue.
func startWaiting(t *testing.T, ctx context.Context, l *Ledger, words string) (done chan error, got *Lease) {
	t.Helper()
	in, once := make(chan struct{}), sync.Once{}
	a := ask(t, words)
	a.Wait, a.Waiting = -1, func(BusyError) { once.Do(func() { close(in) }) }
	done, got = make(chan error, 1), &Lease{}
	go func() {
		var err error
		*got, err = l.Acquire(ctx, a)
		done <- err
	}()
	select {
	case <-in:
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	}
	return done, got
}

func TestReleaseWakesTheQueueInOrder(t *testing.T) {
	l := fresh(t)
	held := mustAcquire(t, l, ask(t, "6"))
	first, lease := startWaiting(t, t.Context(), l, "6")
	second, _ := startWaiting(t, t.Context(), l, "1")
	if v := mustView(t, l); len(v.Queue) != 2 || v.Queue[0].Request != "6" || v.Queue[1].Request != "1" {
		t.Fatalf("queue: %+v", v.Queue)
	}
	if _, err := l.Acquire(t.Context(), ask(t, "1g.10gb")); err != nil {
		t.Errorf("a request that doesn't compete had to wait: %v", err)
	}
	if err := l.Release(t.Context(), held.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if v := mustView(t, l); len(v.Queue) != 0 {
		t.Errorf("left in the queue: %+v", v.Queue)
	}
}

// A waiting request is matched in the current inventory.
func TestWaitingUsesCurrentInventory(t *testing.T) {
	l := fresh(t)
	held := mustAcquire(t, l, ask(t, "6"))
	a := ask(t, "1")
	a.Wait = -1
	a.Renew = func(context.Context) (gpu.Inventory, error) {
		now := node()
		for i := range 5 {
			now.GPUs[i].Lost = "fell off the bus"
		}
		return now, nil
	}
	a.Waiting = func(BusyError) {
		if err := l.Release(t.Context(), held.ID); err != nil {
			t.Error(err)
		}
	}
	got, err := l.Acquire(t.Context(), a)
	if err != nil || got.Devices[0].Index != "5" {
		t.Errorf("got %+v, %v; want GPU 5, the only one left", got.Devices, err)
	}
}

// While a large request collects its devices, small ones wait behind it.
func TestLargeRequestIsNotOvertaken(t *testing.T) {
	l := fresh(t)
	three, two := mustAcquire(t, l, ask(t, "3")), mustAcquire(t, l, ask(t, "2")) // one is free
	large, lease := startWaiting(t, t.Context(), l, "6")
	if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, ErrBusy) {
		t.Errorf("a request that doesn't wait overtook the queue: %v", err)
	}
	small, _ := startWaiting(t, t.Context(), l, "1")
	for _, held := range []Lease{three, two} {
		if err := l.Release(t.Context(), held.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-large; err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-small:
		t.Errorf("the small one was served too: %v", err)
	default:
	}
	if err := l.Release(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-small; err != nil {
		t.Fatal(err)
	}
}

func TestWaitEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait time.Duration
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want []error
	}{
		{"at its limit", 30 * time.Millisecond, context.WithCancel, []error{ErrBusy}},
		{"with the context", -1, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 30*time.Millisecond)
		}, []error{ErrBusy, context.DeadlineExceeded}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := fresh(t)
			mustAcquire(t, l, ask(t, "6"))
			ctx, cancel := tt.ctx(t.Context())
			defer cancel()
			a := ask(t, "1")
			a.Wait = tt.wait
			_, err := l.Acquire(ctx, a)
			for _, want := range tt.want {
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			}
			var busy *BusyError
			if !errors.As(err, &busy) || len(busy.Holders) != 1 || busy.Waited <= 0 {
				t.Errorf("got %+v", busy)
			}
			if v := mustView(t, l); len(v.Queue) != 0 {
				t.Errorf("left in the queue: %+v", v.Queue)
			}
		})
	}
}

// The end of a holder doesn't change the ledger; the periodic check finds it.
func TestEndOfHolderServesTheQueue(t *testing.T) {
	inFake(t, func(w *lockedFake, l *Ledger) {
		w.set(func(f *fakeWorld) { f.procs[50] = fakeProcess{start: 5} })
		a := ask(t, "6")
		a.Owner.Process = Process{PID: 50, Start: 5, Namespace: 7}
		mustAcquire(t, l, a)
		done, _ := startWaiting(t, t.Context(), l, "6")
		w.set(func(f *fakeWorld) { delete(f.procs, 50) })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestDeadWaiterIsRemoved(t *testing.T) {
	inFake(t, func(w *lockedFake, l *Ledger) {
		held := mustAcquire(t, l, ask(t, "5"))
		a := ask(t, "6")
		a.Owner.BootID = "boot-1"
		ghost := waiter{ID: "00000000dead", Request: "6", Owner: a.Owner, Process: Process{PID: 60, Start: 6, Namespace: 7}}
		w.set(func(f *fakeWorld) { f.procs[60] = fakeProcess{start: 6} })
		if _, err := l.attempt(t.Context(), a, &ghost, true); !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		done, _ := startWaiting(t, t.Context(), l, "1") // one is free, and kept for the waiter that has ended
		w.set(func(f *fakeWorld) { delete(f.procs, 60) })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), held.ID); err != nil {
			t.Fatal(err)
		}
	})
}

// lockedFake is a fake machine that can be changed while other goroutines read it.
type lockedFake struct {
	mu sync.Mutex
	*fakeWorld
}

func (w *lockedFake) set(change func(*fakeWorld)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w.fakeWorld)
}

func (w *lockedFake) Process(pid int) (process.Stat, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fakeWorld.Process(pid)
}

func (w *lockedFake) Now() (time.Time, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fakeWorld.Now()
}

func inFake(t *testing.T, test func(*lockedFake, *Ledger)) {
	w := &lockedFake{fakeWorld: newFake()}
	l := in(t, w)
	l.poll = 5 * time.Millisecond
	test(w, l)
}

func TestWaitingReportsEachChangeOnce(t *testing.T) {
	l := fresh(t)
	held := []Lease{mustAcquire(t, l, ask(t, "3")), mustAcquire(t, l, ask(t, "3"))}
	l.poll = 5 * time.Millisecond
	news := make(chan BusyError, 100)
	a := ask(t, "6")
	a.Wait, a.Waiting = -1, func(b BusyError) { news <- b }
	done := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), a)
		done <- err
	}()
	if b := <-news; len(b.Holders) != 2 || b.Ahead != 0 {
		t.Errorf("first: %v", &b)
	}
	if err := l.Release(t.Context(), held[0].ID); err != nil {
		t.Fatal(err)
	}
	if b := <-news; len(b.Holders) != 1 || b.Free != 3 {
		t.Errorf("second: %v", &b)
	}
	if err := l.Release(t.Context(), held[1].ID); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(news) != 0 {
		b := <-news
		t.Errorf("told again: %v", &b)
	}
}

// A callback that panics leaves no ticket in the queue.
func TestPanicInWaiting(t *testing.T) {
	l := fresh(t)
	mustAcquire(t, l, ask(t, "6"))
	a := ask(t, "1")
	a.Wait, a.Waiting = -1, func(BusyError) { panic("callback") }
	func() {
		defer func() { _ = recover() }()
		_, err := l.Acquire(t.Context(), a)
		t.Errorf("returned %v", err)
	}()
	if v := mustView(t, l); len(v.Queue) != 0 {
		t.Errorf("left in the queue: %+v", v.Queue)
	}
}

// Many goroutines of one process share a handle; run with -race.
func TestManyAtOnce(t *testing.T) {
	l := fresh(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 5 {
				a := ask(t, []string{"1", "2", "1g.10gb", "6"}[i%4])
				a.Wait = -1
				lease, err := l.Acquire(t.Context(), a)
				if err != nil {
					t.Error(err)
					return
				}
				if err := l.Release(t.Context(), lease.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if v := mustView(t, l); len(v.Leases) != 0 || len(v.Queue) != 0 {
		t.Errorf("left: %+v", v)
	}
}

// TestWaiterOfAnotherProcess: a request that waits on behalf of a process has that process's place in
// the queue, also after the process that asked for it was killed, and isn't served while it is stopped.
func TestWaiterOfAnotherProcess(t *testing.T) {
	w := newFake()
	w.procs[20], w.procs[21] = fakeProcess{start: 5}, fakeProcess{start: 6}
	l := in(t, w)
	l.poll = time.Millisecond
	held := mustAcquire(t, l, ask(t, "6"))
	wait := func(pid int, killed bool) (done chan error) {
		a := ask(t, "6")
		in, once := make(chan struct{}), sync.Once{}
		a.Wait, a.Waiter = -1, Process{PID: pid, Start: uint64(pid - 15)}
		a.Owner.Process = a.Waiter
		a.Waiting = func(BusyError) {
			once.Do(func() { close(in) })
			if killed {
				select {} // it does nothing more, and leaves its ticket
			}
		}
		done = make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), a)
			done <- err
		}()
		<-in
		return done
	}
	queue := func() (pids []int) {
		for _, q := range mustView(t, l).Queue {
			pids = append(pids, q.Owner.Process.PID)
		}
		return pids
	}
	wait(20, true)
	before := mustView(t, l).Queue[0]
	second := wait(21, false)
	again := wait(20, false)
	if v := mustView(t, l).Queue; !slices.Equal(queue(), []int{20, 21}) || v[0].ID != before.ID {
		t.Errorf("queue: %+v", v)
	}
	w.halt(20, true)
	testutil.Must(t, l.Release(t.Context(), held.ID))
	if err := <-second; err != nil { // it overtakes
		t.Fatal(err)
	}
	testutil.Must(t, l.Release(t.Context(), mustView(t, l).Leases[0].ID))
	select {
	case err := <-again:
		t.Fatalf("a stopped process was served: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.halt(20, false)
	if err := <-again; err != nil {
		t.Fatal(err)
	}
}

// enqueueFor puts a request into the queue that the process server makes on behalf of the process client.
func enqueueFor(t *testing.T, w *fakeWorld, l *Ledger, server, client int, words string) (id string) {
	t.Helper()
	usual := w.me
	defer func() { w.me = usual }()
	w.procs[server], w.me.Process = fakeProcess{start: uint64(server)}, Process{PID: server, Start: uint64(server), Namespace: 7}
	a := ask(t, words)
	a.Owner.BootID, a.Waiter = w.me.boot, Process{PID: client, Start: w.procs[client].start, Namespace: 7}
	ticket, err := l.newTicket(a)
	testutil.Must(t, err)
	if _, err := l.attempt(t.Context(), a, &ticket, true); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	return ticket.ID
}

// TestServerHasEnded: a request whose server has ended leaves the queue unless its process asks another
// server soon, although that process lives.
func TestServerHasEnded(t *testing.T) {
	w := newFake()
	w.procs[20] = fakeProcess{start: 5}
	l := in(t, w)
	mustAcquire(t, l, ask(t, "5"))
	id := enqueueFor(t, w, l, 30, 20, "6") // it keeps the sixth
	check := func(what string, want ...string) {
		t.Helper()
		_, err := l.Acquire(t.Context(), ask(t, "1"))
		var ids []string
		for _, q := range mustView(t, l).Queue {
			ids = append(ids, q.ID)
		}
		if !slices.Equal(ids, want) || errors.Is(err, ErrBusy) != (len(want) > 0) {
			t.Errorf("%s: queue %v, want %v; %v", what, ids, want, err)
		}
	}
	w.uptime += time.Hour
	check("its server lives", id)
	w.end(30)
	check("its server has just ended", id)
	w.uptime += 9 * time.Second
	check("a moment later", id)
	if again := enqueueFor(t, w, l, 31, 20, "6"); again != id {
		t.Errorf("the next server's request is %s, was %s", again, id)
	}
	w.uptime += time.Hour
	check("with the next server", id)
	w.end(31)
	check("which ends, too", id)
	w.uptime += 11 * time.Second
	check("and the process asks no other")
}

// TestEndOfServerServesTheQueue: requests that wait behind that of a server which has ended don't depend on others.
func TestEndOfServerServesTheQueue(t *testing.T) {
	inFake(t, func(w *lockedFake, l *Ledger) {
		mustAcquire(t, l, ask(t, "5"))
		w.set(func(f *fakeWorld) { f.procs[20] = fakeProcess{start: 5} })
		enqueueFor(t, w.fakeWorld, l, 30, 20, "6")
		done, _ := startWaiting(t, t.Context(), l, "1")
		w.set(func(f *fakeWorld) { delete(f.procs, 30) })
		for deadline := time.After(10 * time.Second); ; {
			w.set(func(f *fakeWorld) { f.uptime += 11 * time.Second })
			select {
			case err := <-done:
				testutil.Must(t, err)
				return
			case <-deadline:
				t.Fatal("it waits on")
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// TestWaiterHasEnded: the wait ends when the process that asks has ended, although its context has not.
func TestWaiterHasEnded(t *testing.T) {
	w := newFake()
	w.procs[20] = fakeProcess{start: 5}
	l := in(t, w)
	l.poll = time.Millisecond
	mustAcquire(t, l, ask(t, "6"))
	a := ask(t, "6")
	a.Wait, a.Waiter = -1, Process{PID: 20, Start: 5}
	a.Waiting = func(BusyError) { w.end(20) }
	if _, err := l.Acquire(t.Context(), a); err == nil || !strings.Contains(err.Error(), "process 20, which asks, has ended") {
		t.Error(err)
	}
	if q := mustView(t, l).Queue; len(q) > 0 {
		t.Errorf("queue: %+v", q)
	}
}
