package ledger

import (
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func openTestQueue(t *testing.T) lockQueue {
	t.Helper()
	q, ok := openLockQueue(unix.Stat_t{Dev: 1, Ino: uint64(time.Now().UnixNano())})
	if !ok {
		t.Skip("no System V semaphores here")
	}
	return q
}

func TestQueueAdmitsOneAtATime(t *testing.T) {
	q := openTestQueue(t)
	if err := q.enter(0); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []time.Duration{0, time.Millisecond} {
		if err := q.enter(limit); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("two at once: %v", err)
		}
	}
	in := make(chan error)
	go func() { in <- q.enter(time.Minute) }()
	waitForWaiter(t, q)
	q.leave()
	if err := <-in; err != nil {
		t.Error(err)
	}
	q.leave()
	if err := q.enter(0); errors.Is(err, unix.EAGAIN) || err == nil {
		t.Errorf("left behind: %v", err)
	}
}

// A semaphore that another user has created first: it is never released, and only its owner can use
// it. The lock can be taken all the same.
func TestQueueOfAnotherUser(t *testing.T) {
	for _, tt := range []struct {
		name string
		perm unix.SysvIpcPerm // the value that the other user has set
		fair bool
	}{
		{"another user's", unix.SysvIpcPerm{Uid: 65534, Mode: 0o600}, false},
		{"for everybody", unix.SysvIpcPerm{Mode: 0o666}, false},
		{"root's, but never left", unix.SysvIpcPerm{Mode: 0o600}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := store{dir: t.TempDir()}
			l, err := openLock(s.lockPath())
			if err != nil {
				t.Fatal(err)
			}
			if !l.fair {
				t.Skip("no System V semaphores here")
			}
			t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_SEMCTL, l.queue.id, 0, 0) }) // it may be removed already
			if err := l.queue.enter(0); err != nil {
				t.Fatal(err)
			}
			// struct semid64_ds begins with the permissions; IPC_SET is 1.
			set := struct {
				unix.SysvIpcPerm
				rest [128]byte
			}{SysvIpcPerm: tt.perm}
			if _, _, errno := unix.Syscall6(unix.SYS_SEMCTL, l.queue.id, 0, 1, uintptr(unsafe.Pointer(&set)), 0, 0); errno != 0 {
				t.Fatal(errno)
			}
			l.close()
			again, err := openLock(s.lockPath())
			if err != nil {
				t.Fatal(err)
			}
			if again.fair != tt.fair {
				t.Errorf("in line before that semaphore: %v", again.fair)
			}
			called := false
			if err := again.callLocked(t.Context(), 5*time.Second, func() error { called = true; return nil }); err != nil || !called {
				t.Errorf("called %v, error %v", called, err)
			}
		})
	}
}

// Without a queue, and with a queue that is removed all the time, the lock still excludes other
// processes.
func TestLockWithoutQueue(t *testing.T) {
	s := store{dir: t.TempDir()}
	inside, most := 0, 0
	var mu sync.Mutex
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		inside += by
		most = max(most, inside)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				l, err := openLock(s.lockPath())
				if err != nil {
					t.Error(err)
					return
				}
				if l.fair = l.fair && i%2 == 0; l.fair {
					_, _, _ = unix.Syscall(unix.SYS_SEMCTL, l.queue.id, 0, 0)
				}
				err = l.callLocked(t.Context(), time.Minute, func() error {
					count(1)
					defer count(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most != 1 {
		t.Errorf("%d at once", most)
	}
}

// waitForWaiter returns when a process waits in the queue.
func waitForWaiter(t *testing.T, q lockQueue) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		if time.Now().After(end) {
			t.Error("no process waits")
			return
		}
		n, _, errno := unix.Syscall(unix.SYS_SEMCTL, q.id, 0, 15)
		if errno != 0 {
			t.Error(errno)
		}
		if errno != 0 || n == 1 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
