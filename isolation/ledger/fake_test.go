package ledger

import (
	"cmp"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/process"
)

// fakeWorld is a machine whose processes the tests define.
type fakeWorld struct {
	me     self
	now    time.Time
	uptime time.Duration
	procs  map[int]fakeProcess
	groups map[string]int // number of live processes by cgroup
	claims map[string][]claim
	broken error // the error of reads of processes and cgroups

	mu     sync.Mutex
	halted map[int]bool // set while a request waits
}

type fakeProcess struct {
	start  uint64
	zombie bool
	cgroup string // "" means the claim's cgroup
	reaper bool
	halted bool
}

func newFake() *fakeWorld {
	return &fakeWorld{
		me:     self{Process: Process{PID: 1, Start: 1, Namespace: 7}, boot: "boot-1", cgroup: "/user", cgroupNS: 9},
		now:    time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		uptime: time.Hour,
		procs:  map[int]fakeProcess{1: {start: 1}},
		groups: map[string]int{"/user": 1},
		claims: map[string][]claim{},
	}
}

func (w *fakeWorld) Now() (time.Time, time.Duration) { return w.now, w.uptime }

func (w *fakeWorld) Self() (self, error) { return w.me, nil }

func (w *fakeWorld) Process(pid int) (process.Stat, error) {
	if w.broken != nil {
		return process.Stat{}, w.broken
	}
	p, ok := w.procs[pid]
	if !ok {
		return process.Stat{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	return process.Stat{Start: p.start, Dead: p.zombie}, nil
}

func (w *fakeWorld) Populated(cgroup string) (bool, error) { return w.groups[cgroup] > 0, w.broken }

func (w *fakeWorld) Claims(o Owner) []claim {
	var cs []claim
	for _, c := range w.claims[o.Container] {
		p, ok := w.procs[c.pid]
		c.seen, c.in = process.Stat{Start: p.start, Dead: p.zombie || !ok}, cmp.Or(p.cgroup, c.in)
		cs = append(cs, c)
	}
	return cs
}

func (w *fakeWorld) OwnCgroup() (string, error) { return w.me.cgroup, nil }

func (w *fakeWorld) Halted(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[pid].halted || w.halted[pid]
}

func (w *fakeWorld) halt(pid int, halted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.halted = map[int]bool{pid: halted}
}

func (w *fakeWorld) end(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.procs, pid)
}

func (w *fakeWorld) Reaper(pid int) bool { return w.procs[pid].reaper }

// in returns a ledger of the test's own on a fake machine.
func in(t testing.TB, w system) *Ledger {
	t.Helper()
	dir := t.TempDir()
	l := Open(Options{Dir: filepath.Join(dir, "run"), Events: filepath.Join(dir, "log")})
	l.world = w
	return l
}
