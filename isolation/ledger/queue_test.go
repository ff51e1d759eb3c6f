package ledger

import (
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openTestQueue(t *testing.T) queue {
	t.Helper()
	q, ok := openQueue(unix.Stat_t{Dev: 1, Ino: uint64(time.Now().UnixNano())})
	if !ok {
		t.Skip("no System V semaphores here")
	}
	return q
}

func TestQueueIsForOneAtATime(t *testing.T) {
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
	for { // until it waits
		n, _, errno := unix.Syscall(unix.SYS_SEMCTL, q.id, 0, 15)
		if errno != 0 {
			t.Fatal(errno)
		}
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	q.leave()
	if err := <-in; err != nil {
		t.Error(err)
	}
	q.leave()
	if err := q.enter(0); errors.Is(err, unix.EAGAIN) || err == nil {
		t.Errorf("left behind: %v", err)
	}
}

// Without a queue, and with one that vanishes all the time, the lock still holds.
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
				l, err := openLock(s.lockFile())
				if err != nil {
					t.Error(err)
					return
				}
				if l.fair = l.fair && i%2 == 0; l.fair {
					_, _, _ = unix.Syscall(unix.SYS_SEMCTL, l.queue.id, 0, 0)
				}
				err = l.call(t.Context(), time.Minute, "/proc", func() error {
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
