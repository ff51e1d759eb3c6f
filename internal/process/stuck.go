package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// ErrStuck means that procfs doesn't answer a question about a process in time. The process exists, and says no more.
//
// The kernel takes locks of a process for most of what procfs shows of it, and the process decides for how long it keeps them. A process
// in execve(2) keeps its exec_update_lock while its files are closed, and a process that maps a file keeps its mmap_lock. Both can
// wait for ever for a file system, for instance for a FUSE server of the same user. Seen with Linux 6.18: stat, maps,
// environ and wchan can't be read then, what ns, root, exe, cwd, fd and map_files lead to has no attributes, and kcmp(2) waits.
// What never waits for the process: status, cgroup, comm, fdinfo, the names in fd and task, the attributes of /proc/PID.
var ErrStuck = errors.New("the process doesn't let the kernel read its state (it is stuck, as in execve(2) or mmap(2) on a file system that doesn't answer)")

// Bounds of the reads that wait for stuck processes. A read that is given up keeps a thread of this process until the stuck process goes
// on, and the Go runtime ends a process with 10,000 threads.
const (
	stuckTimeout  = 200 * time.Millisecond
	stuckTimeout2 = 10 * time.Millisecond // while stuckFew reads wait already
	stuckFew      = 5
	stuckPerOwner = 16  // with more, all processes of the owner count as stuck
	stuckMost     = 256 // with more, all processes but this one count as stuck
)

// slowTimeout bounds a read that makes progress, or that may not have had its turn on a busy machine. busyDelay is how much too late a timer
// is there: the read in another thread of this process has waited for a processor as well.
const (
	slowTimeout = 2 * time.Second
	busyDelay   = 5 * time.Millisecond
)

// resumeTimeout is how long a read may wait in addition: if this process itself was stopped, its timers are over before its reads.
const resumeTimeout = 10 * time.Millisecond

// lock is what a read about a process may wait for.
type lock string

const (
	execLock     lock = ""          // the process's exec_update_lock
	mapsLock     lock = "maps"      // the locks of /proc/PID/maps
	mapFilesLock lock = "map_files" // the process's mmap_lock
)

// question is what a read may wait for: a lock of a process or thread.
type question struct {
	proc string // where procfs is mounted
	pid  int
	lock lock
}

// outcome of a read.
type outcome int

const (
	answered outcome = iota
	silent           // nothing came in time
	slow             // not all came in time
)

// stuckReads are the reads that were given up and still wait. The zero value is ready for use.
type stuckReads struct {
	mu      sync.Mutex
	count   int
	waiting map[question]waitingReads
	byOwner map[string]int
}

// waitingReads are those of one question.
type waitingReads struct {
	count   int
	outcome outcome // of the first
}

// stuck are the reads of this process.
var stuck stuckReads //nolint:gochecknoglobals // the threads are this process's, whichever search has started them

// maxReads bounds the reads that are waited for at once. More of them would take each other's processor time, and seem stuck.
const maxReads = 8

var turns = make(chan struct{}, maxReads) //nolint:gochecknoglobals // the processors are this process's, whatever reads

// read is a read in the background.
type read struct {
	question
	ended     bool   // guarded by stuckReads.mu
	owner     string // of the process, once the read is given up
	begun     atomic.Bool
	abandoned atomic.Bool // the result isn't needed any more
	progress  atomic.Int64
}

// beginRead returns how long a read may wait. The outcome isn't answered if an earlier one waits still, or too many do.
func (s *stuckReads) beginRead(q question) (wait time.Duration, o outcome) {
	s.mu.Lock()
	count, earlier := s.count, s.waiting[q]
	s.mu.Unlock()
	switch {
	case earlier.count > 0:
		return 0, earlier.outcome
	case count < stuckFew:
		return stuckTimeout, answered
	case count >= stuckMost:
		return 0, silent
	}
	owner := ownerOf(q.proc, q.pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byOwner[owner] >= stuckPerOwner {
		return 0, silent
	}
	return stuckTimeout2, answered
}

// endRead notes the end of a read.
func (s *stuckReads) endRead(r *read) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.ended = true
	if !r.abandoned.Load() {
		return
	}
	s.count--
	w := s.waiting[r.question]
	if w.count--; w.count == 0 {
		delete(s.waiting, r.question)
	} else {
		s.waiting[r.question] = w
	}
	if s.byOwner[r.owner]--; s.byOwner[r.owner] == 0 {
		delete(s.byOwner, r.owner)
	}
}

// giveUp stops the wait for a read. It returns false if the read has ended.
func (s *stuckReads) giveUp(r *read, o outcome) bool {
	owner := ownerOf(r.proc, r.pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ended {
		return false
	}
	if s.waiting == nil {
		s.waiting, s.byOwner = map[question]waitingReads{}, map[string]int{}
	}
	w := s.waiting[r.question]
	if w.count == 0 {
		w.outcome = o
	}
	w.count++
	s.waiting[r.question] = w
	s.count++
	s.byOwner[owner]++
	r.owner = owner
	r.abandoned.Store(true)
	return true
}

// ownerOf returns whose a process is: its real user, and for root and system accounts its cgroups, too, which tell containers from
// services. Reading them never waits.
func ownerOf(proc string, pid int) string {
	dir := proc + "/" + strconv.Itoa(pid)
	status, _ := smallfile.Read(dir+"/status", maxStatus) // without one it has ended
	_, rest, _ := strings.Cut(string(status), "\nUid:\t")
	uid, _, _ := strings.Cut(rest, "\t")
	if id, err := strconv.Atoi(uid); err == nil && id > maxSystemUser {
		return uid
	}
	groups, _ := smallfile.Read(dir+"/cgroup", maxStatus)
	return uid + " " + string(groups)
}

// readInBackground calls f in the background and returns its result. If it doesn't come in time, it is given up: until f has returned, the same
// question is answered at once with the same outcome. f can note progress, and should return soon once the read is abandoned.
func readInBackground[T any](q question, f func(*read) T) (answer T, o outcome) {
	if q.pid == os.Getpid() { // it isn't stuck
		return f(&read{question: q}), answered
	}
	turns <- struct{}{}
	defer func() { <-turns }()
	wait, o := stuck.beginRead(q)
	if o != answered {
		return answer, o
	}
	r, done := &read{question: q}, make(chan T, 1)
	go func() {
		defer stuck.endRead(r)
		r.begun.Store(true)
		done <- f(r)
	}()
	busyTimeout := slowTimeout
	if wait < stuckTimeout {
		busyTimeout = stuckTimeout
	}
	began, before := time.Now(), int64(0)
	due := began.Add(wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for resumed := false; ; {
		select {
		case answer = <-done:
			return answer, answered
		case <-timer.C:
		}
		now := r.progress.Load()
		busy := !r.begun.Load() || time.Since(due) > busyDelay
		switch {
		case now > before && time.Since(began) < slowTimeout, busy && time.Since(began) < busyTimeout:
			before = now
			due = time.Now().Add(wait)
			timer.Reset(wait)
			continue
		case !resumed:
			resumed = true
			timer.Reset(resumeTimeout)
			continue
		}
		o = silent
		if now > 0 {
			o = slow
		}
		if !stuck.giveUp(r, o) {
			return <-done, answered
		}
		return answer, o
	}
}

// result is a value or an error.
type result[T any] struct {
	value T
	err   error
}

// readBounded calls f, which reads what procfs shows of a process. If f waits for the process, the error is ErrStuck.
func readBounded[T any](proc string, pid int, f func() (T, error)) (value T, err error) {
	got, o := readInBackground(question{proc, pid, execLock}, func(*read) (r result[T]) {
		r.value, r.err = f()
		return r
	})
	if o != answered {
		return value, ErrStuck
	}
	return got.value, got.err
}
