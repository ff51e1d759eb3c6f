package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// stuckProcesses is a procfs whose processes don't answer until released is closed.
type stuckProcesses struct {
	*testing.T
	proc     string
	released chan bool
}

func newStuckProcesses(t *testing.T) stuckProcesses {
	t.Helper()
	s := stuckProcesses{t, t.TempDir(), make(chan bool)}
	t.Cleanup(s.release)
	return s
}

// release lets all go on, and waits until the reads have ended.
func (s stuckProcesses) release() {
	select {
	case <-s.released:
	default:
		close(s.released)
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		stuck.mu.Lock()
		left := fmt.Sprint(stuck.count, len(stuck.waiting), len(stuck.byOwner))
		stuck.mu.Unlock()
		if left == "0 0 0" {
			return
		}
		if time.Since(began) > 10*time.Second {
			s.Fatalf("reads that have ended are remembered: %s", left)
		}
	}
}

// add adds a process of a user.
func (s stuckProcesses) add(pid, uid int) {
	s.Helper()
	dir := filepath.Join(s.proc, fmt.Sprint(pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(dir+"/status", fmt.Appendf(nil, "Name:\tx\nUid:\t%d\t0\t0\t0\n", uid), 0o600); err != nil {
		s.Fatal(err)
	}
}

// read reads about a process that is stuck, and returns how long that took.
func (s stuckProcesses) read(pid int) time.Duration {
	s.Helper()
	began := time.Now()
	if _, err := readBounded(s.proc, pid, func() (int, error) { <-s.released; return 1, nil }); !errors.Is(err, ErrStuck) {
		s.Errorf("a read about stuck process %d: %v", pid, err)
	}
	return time.Since(began)
}

// answers checks that a process is read that isn't stuck.
func (s stuckProcesses) answers(pid int) {
	s.Helper()
	want := errors.New("an error")
	got, err := readBounded(s.proc, pid, func() (int, error) { return 7, want })
	if got != 7 || !errors.Is(err, want) {
		s.Errorf("of process %d: %d, %v", pid, got, err)
	}
}

// TestStuck: a read about a stuck process is given up, and the next ones don't wait. Other processes are read.
func TestStuck(t *testing.T) {
	s := newStuckProcesses(t)
	if took := s.read(1 << 23); took < stuckTimeout || took > 10*stuckTimeout {
		t.Errorf("the first read took %v", took)
	}
	if took := s.read(1 << 23); took > stuckTimeout/2 {
		t.Errorf("the second read took %v", took)
	}
	s.answers(1<<23 + 1)
	s.release()
	s.answers(1 << 23)
}

// TestManyStuck: many stuck processes together hold up a caller only briefly and take few threads; other users' processes are read.
func TestManyStuck(t *testing.T) {
	s := newStuckProcesses(t)
	const first, count, alice, bob = 1 << 23, 1000, 4711, 4712
	for i := range count {
		s.add(first+i, alice)
	}
	s.add(first+count, bob)
	began := time.Now()
	for i := range count {
		s.read(first + i)
	}
	if took := time.Since(began); took > 4*stuckFew*stuckTimeout {
		t.Errorf("%d reads took %v", count, took)
	}
	if stuck.count != stuckPerOwner {
		t.Errorf("%d reads of one user wait, want %d", stuck.count, stuckPerOwner)
	}
	s.answers(first + count)
	s.release()
	s.answers(first)
}

// TestMostStuck: processes of any number of users and containers take no more threads than stuckMost.
func TestMostStuck(t *testing.T) {
	s := newStuckProcesses(t)
	const first, count = 1 << 23, stuckMost + 100
	for i := range count {
		s.add(first+i, 4711+i)
		s.read(first + i)
	}
	if stuck.count != stuckMost {
		t.Errorf("%d reads wait, want %d", stuck.count, stuckMost)
	}
}

// TestSlowRead: a read that makes progress isn't given up, and one that stops is known to be incomplete.
func TestSlowRead(t *testing.T) {
	s := newStuckProcesses(t)
	q := question{s.proc, 1 << 23, mapsLock}
	got, o := readInBackground(q, func(r *read) int {
		for range 6 {
			time.Sleep(stuckTimeout / 4)
			r.progress.Add(1)
		}
		return 7
	})
	if got != 7 || o != answered {
		t.Errorf("a slow read: %d, outcome %d", got, o)
	}
	for range 2 {
		if _, o := readInBackground(q, func(r *read) int { r.progress.Add(1); <-s.released; return 7 }); o != slow {
			t.Errorf("a read that stops in the middle: outcome %d", o)
		}
	}
	q.lock = execLock
	if _, o := readInBackground(q, func(*read) int { return 0 }); o != answered {
		t.Error("a read that waits for another lock isn't tried")
	}
}

func BenchmarkReadStat(b *testing.B) {
	for range b.N {
		if _, err := readFields("/proc", os.Getppid()); err != nil {
			b.Fatal(err)
		}
	}
}
