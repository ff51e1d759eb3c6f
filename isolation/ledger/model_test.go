package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/process"
)

// The model: a faked machine on which many tasks take leases, become containers,
// end, are killed (also in the middle of a change), and wait; beside it a list of the
// granted devices and of the waiting tasks. The ledger's own files are real.
//
// After every step no two live tasks hold devices that conflict, no live
// task's lease is lost, no waiting task was overtaken, and no lease has ended without an inspection.
type model struct {
	w       *fakeWorld
	l       *Ledger
	inv     gpu.Inventory
	tasks   []*task
	line    []*task
	old     []string // ids of leases that have ended
	nextPID int
	dying   string // the step at which the process that acts is killed, "" if it isn't
	killed  int
	// listed are the leases that the ledger has had since it was last damaged, and inspected those that Options.Inspect
	// has seen; nil without Options.Inspect.
	listed, inspected map[string]bool
}

// task is a process that takes a lease, and the container that it makes.
type task struct {
	ask    Ask
	ticket waiter
	lease  Lease
	maker  int // pid, 0 after its end
	init   int // pid, 0 without a container
	others int // processes in the cgroup besides init
	bound  bool
	// leaving: a release was killed halfway. The task doesn't use its devices any more, and the
	// ledger may still have the lease.
	leaving bool
}

type killed struct{}

// words are requests that compete with each other in all ways: counts, ids, a GPU and its slices.
var words = []string{"1", "2", "3", "device=0", "1,2", "device=3", "3:0", "3:1,3:2", "1g.10gb", "1g.10gb:2", "3g.40gb", "all"}

func modelNode() gpu.Inventory {
	inv := node()
	inv.GPUs = inv.GPUs[:4]
	g := &inv.GPUs[3]
	g.MIG, g.Slices = true, nil
	for i, profile := range []string{"1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb"} {
		g.Slices = append(g.Slices, gpu.Slice{UUID: fmt.Sprintf("MIG-%032d", i), Index: i, Profile: profile, GI: i + 7})
	}
	return inv
}

func newModel(dir string) *model {
	m := &model{w: newFake(), inv: modelNode(), nextPID: 100, listed: map[string]bool{}}
	m.l = Open(Options{Dir: filepath.Join(dir, "run"), Events: filepath.Join(dir, "log")})
	m.l.world, m.l.exitGrace = m.w, 0
	m.l.step = func(name string) {
		if m.dying == name {
			m.dying, m.killed = "", m.killed+1
			panic(killed{})
		}
	}
	return m
}

// spawn starts a process, now and then with the pid of one that has ended.
func (m *model) spawn(t *rapid.T, cgroup string) int {
	pid := m.nextPID
	if used := rapid.IntRange(100, m.nextPID).Draw(t, "pid"); rapid.Bool().Draw(t, "reuse") {
		if _, taken := m.w.procs[used]; !taken {
			pid = used
		}
	}
	m.nextPID = max(m.nextPID, pid+1)
	m.w.procs[pid] = fakeProcess{start: uint64(m.w.uptime / process.Tick), cgroup: cgroup}
	return pid
}

func (m *model) tick() { m.w.uptime += process.Tick; m.w.now = m.w.now.Add(process.Tick) }

// runsUntilKilled runs f, in which the acting process may be killed, and reports whether it was.
func (m *model) runsUntilKilled(t *rapid.T, f func()) (died bool) {
	steps := []string{"", "", "", "locked", "receipt written", "ledger written", "receipt removed", "unlocked", "inspected"}
	m.dying = rapid.SampledFrom(steps).Draw(t, "killed at")
	defer func() {
		m.dying = ""
		switch r := recover().(type) {
		case nil:
		case killed:
			died = true
		default:
			panic(r)
		}
	}()
	f()
	return false
}

// alive reports whether a task with a lease really lives.
func (m *model) alive(k *task) bool { return !k.bound && k.maker != 0 || k.init != 0 || k.others > 0 }

func (m *model) sync(k *task) {
	m.w.groups[k.ask.Owner.Cgroup] = k.others
	if k.init != 0 {
		m.w.groups[k.ask.Owner.Cgroup]++
	}
}

func (m *model) newTask(t *rapid.T) *task {
	r, err := request.Parse(rapid.SampledFrom(words).Draw(t, "request"))
	if err != nil {
		t.Fatal(err)
	}
	k := &task{maker: m.spawn(t, "/user")}
	id := fmt.Sprintf("c%d", m.nextPID*1000+len(m.w.claims))
	m.w.claims[id] = nil
	self := m.w.me.Process
	self.PID, self.Start = k.maker, m.w.procs[k.maker].start
	k.ask = Ask{Request: r, Inventory: m.inv, Owner: Owner{
		EntryPoint: "run", Container: id, Cgroup: "/berth/" + id, Process: self,
		BootID: m.w.me.boot, CgroupNS: m.w.me.cgroupNS, Maker: m.w.me.cgroup,
	}}
	k.ticket = waiter{
		ID: fmt.Sprintf("%012x", m.nextPID*1000+len(m.w.claims)), Request: r.String(), Owner: k.ask.Owner,
		Since: m.w.now, Arrived: m.w.uptime, Process: self, Cgroup: "/user",
	}
	return k
}

// attempt lets a task try once for its devices, and checks the result.
func (m *model) attempt(t *rapid.T, k *task, waits, stay bool) {
	ahead := m.ahead(k)
	held, listed := m.held(false), m.held(true)
	var err error
	died := m.runsUntilKilled(t, func() {
		if waits {
			k.lease, err = m.l.attempt(context.Background(), k.ask, &k.ticket, stay)
		} else {
			k.lease, err = m.l.Acquire(context.Background(), k.ask)
		}
	})
	switch {
	case died:
		delete(m.w.procs, k.maker)
		m.line = slices.DeleteFunc(m.line, func(o *task) bool { return o == k })
	case err == nil:
		m.line = slices.DeleteFunc(m.line, func(o *task) bool { return o == k })
		m.checkGrant(t, k, held, ahead)
		m.tasks = append(m.tasks, k)
	case errors.Is(err, ErrBusy):
		m.checkRefusal(t, k, listed, ahead)
		if !waits || !stay {
			m.line = slices.DeleteFunc(m.line, func(o *task) bool { return o == k })
			delete(m.w.procs, k.maker)
		} else if !slices.Contains(m.line, k) {
			m.line = append(m.line, k)
		}
	default:
		t.Fatalf("attempt at %s: %v", k.ask.Request, err)
	}
}

// ahead are the waiters that came before the task.
func (m *model) ahead(k *task) []*task {
	if i := slices.Index(m.line, k); i >= 0 {
		return slices.Clone(m.line[:i])
	}
	return slices.Clone(m.line)
}

// held returns the devices of live tasks, with or without tasks that are leaving.
func (m *model) held(leaving bool) []gpu.Device {
	var ds []gpu.Device
	for _, k := range m.tasks {
		if m.alive(k) && (leaving || !k.leaving) {
			ds = append(ds, k.lease.Devices...)
		}
	}
	return ds
}

// checkGrant checks that every earlier waiter that could have been served still can be, and that
// the others have lost no device that they could use.
func (m *model) checkGrant(t *rapid.T, k *task, held []gpu.Device, ahead []*task) {
	for _, d := range k.lease.Devices {
		if slices.ContainsFunc(held, d.Conflicts) {
			t.Fatalf("%s got %s, which is held", k.ask.Request, d.UUID)
		}
	}
	before, after := held, append(slices.Clone(held), k.lease.Devices...)
	for _, a := range ahead {
		could, err := match.Choose(m.inv, a.ask.Request, before)
		if err == nil {
			can, err := match.Choose(m.inv, a.ask.Request, after)
			if err != nil {
				t.Fatalf("%s took from %s, which came before and was to be served", k.ask.Request, a.ask.Request)
			}
			before, after = append(slices.Clone(before), could...), append(slices.Clone(after), can...)
			continue
		}
		wants, err := match.Candidates(m.inv, a.ask.Request)
		if err != nil {
			t.Fatal(err)
		}
		if overlap(wants, k.lease.Devices) {
			t.Fatalf("%s passed %s, which came before", k.ask.Request, a.ask.Request)
		}
		before, after = append(slices.Clone(before), wants...), append(slices.Clone(after), wants...)
	}
}

// checkRefusal checks that the refusal has a reason other than dead holders.
func (m *model) checkRefusal(t *rapid.T, k *task, held []gpu.Device, ahead []*task) {
	if _, err := match.Choose(m.inv, k.ask.Request, held); err != nil {
		return
	}
	for _, a := range ahead {
		wants, err := match.Candidates(m.inv, a.ask.Request)
		if err != nil {
			t.Fatal(err)
		}
		mine, err := match.Candidates(m.inv, k.ask.Request)
		if err != nil {
			t.Fatal(err)
		}
		if overlap(wants, mine) {
			return
		}
	}
	t.Fatalf("%s was refused although its devices are free and nobody waits for them", k.ask.Request)
}

func (m *model) pickTask(t *rapid.T, from []*task, fits func(*task) bool) *task {
	var can []*task
	for _, k := range from {
		if fits(k) {
			can = append(can, k)
		}
	}
	if len(can) == 0 {
		t.Skip("no such task")
	}
	return can[rapid.IntRange(0, len(can)-1).Draw(t, "task")]
}

// check holds after every action.
func (m *model) check(t *rapid.T) {
	defer m.tick()
	v, err := m.l.View()
	if err != nil {
		t.Fatal(err)
	}
	var live []Status
	present := map[string]bool{}
	for _, s := range v.Leases {
		if present[s.ID] = true; s.Live {
			live = append(live, s)
		}
	}
	if _, err := os.Stat(m.l.store.ledgerPath()); err != nil {
		m.listed = map[string]bool{} // leases of dead holders are dropped when the ledger is rebuilt
	}
	for id := range m.listed {
		if m.inspected != nil && !present[id] && !m.inspected[id] {
			t.Fatalf("lease %s has ended without an inspection", id)
		}
	}
	maps.Copy(m.listed, present)
	for i, a := range live {
		for _, b := range live[:i] {
			if slices.ContainsFunc(a.Devices, b.conflicts) {
				t.Fatalf("leases %s and %s share a device", a.ID, b.ID)
			}
		}
	}
	for _, k := range m.tasks {
		listed := slices.ContainsFunc(live, func(s Status) bool { return s.ID == k.lease.ID })
		if m.alive(k) != listed && !k.leaving {
			t.Fatalf("task with lease %s lives: %v; the ledger says %v", k.lease.ID, m.alive(k), listed)
		}
	}
	for _, s := range live {
		isTask := func(k *task) bool { return k.lease.ID == s.ID }
		if !slices.ContainsFunc(m.tasks, isTask) {
			t.Fatalf("lease %s of nobody is live: %s", s.ID, s.Note)
		}
	}
}

// checkAllFree kills all tasks and acquires every device of the node.
func (m *model) checkAllFree(t *rapid.T) {
	m.w.procs, m.w.groups = map[int]fakeProcess{1: {start: 1}}, map[string]int{"/user": 1}
	m.tasks, m.line = nil, nil
	for _, words := range []string{"3", "device=3"} {
		r, err := request.Parse(words)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.l.Acquire(context.Background(), Ask{Owner: Owner{EntryPoint: "run"}, Request: r, Inventory: m.inv}); err != nil {
			t.Fatalf("all are dead, and yet: %v", err)
		}
		m.w.uptime += reapInterval // the second acquire reaps in any case
	}
	left, err := os.ReadDir(m.l.store.receiptsDir())
	if err != nil || len(left) != 2 {
		t.Fatalf("receipts left: %v, %v", left, err)
	}
}

func TestModel(t *testing.T) {
	base := t.TempDir()
	if atomicfile.Volatile("/dev/shm") { // no flush to a disk
		var err error
		if base, err = os.MkdirTemp("/dev/shm", "berth-model-"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(base) }) // best effort cleanup
	}
	n, kills := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		m := newModel(filepath.Join(base, fmt.Sprint(n)))
		if rapid.Bool().Draw(t, "inspects") {
			m.inspected = map[string]bool{}
			m.l.inspect = func(_ context.Context, ended []Lease) error {
				for _, l := range ended {
					m.inspected[l.ID] = true
				}
				return nil
			}
		}
		t.Repeat(m.actions())
		m.checkAllFree(t)
		kills += m.killed
	})
	t.Logf("%d runs, %d processes killed in the middle of a change", n, kills)
}
