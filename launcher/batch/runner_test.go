package batch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// node is a simulated node: each worker waits for a device, and runs tasks in simulated time.
type node struct {
	free     chan string
	mu       sync.Mutex
	took     func(j Job, devices string) (time.Duration, Exit)
	running  map[string]int // task by device
	runs     map[int]int    // attempts by task
	most     int
	problems []string
	reports  bool // a worker that is killed reports that its task was killed
}

func newNode(devices int, took func(Job, string) (time.Duration, Exit)) *node {
	n := &node{free: make(chan string, devices), took: took, running: map[string]int{}, runs: map[int]int{}}
	for i := range devices {
		n.free <- fmt.Sprint(i)
	}
	return n
}

type fakeWorker struct {
	node   *node
	jobs   chan Job
	killed chan struct{}
}

func (w fakeWorker) Run(j Job) { w.jobs <- j }
func (w fakeWorker) Close()    { close(w.jobs) }
func (w fakeWorker) Kill()     { close(w.killed) } // panics at the second call

func (n *node) startWorker(request string, slot int, events chan<- Event) (Worker, error) {
	w := fakeWorker{n, make(chan Job, 1), make(chan struct{})}
	go func() {
		defer func() { events <- Event{Slot: slot, Gone: true} }()
		device := ""
		if request != "" {
			select {
			case device = <-n.free:
				defer func() { n.free <- device }()
			case <-w.killed:
				return
			}
		}
		events <- Event{Slot: slot, Ready: true, Devices: device}
		for {
			select {
			case j, ok := <-w.jobs:
				if !ok || !n.runJob(w, j, device, slot, events) {
					return
				}
			case <-w.killed:
				return
			}
		}
	}()
	return w, nil
}

// runJob returns false if the worker is killed.
func (n *node) runJob(w fakeWorker, j Job, device string, slot int, events chan<- Event) bool {
	n.mu.Lock()
	n.runs[j.Number]++
	if device != "" {
		if other := n.running[device]; other != 0 {
			n.problems = append(n.problems, fmt.Sprintf("device %s has tasks %d and %d", device, other, j.Number))
		}
		n.running[device] = j.Number
		n.most = max(n.most, len(n.running))
		defer func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.running, device)
		}()
	}
	d, exit := n.took(j, device)
	n.mu.Unlock()
	select {
	case <-time.After(d):
	case <-w.killed:
		if n.reports {
			events <- Event{Slot: slot, Exit: &Exit{Code: 137}}
		}
		return false
	}
	if exit.Lost {
		return false // as a worker that is killed
	}
	events <- Event{Slot: slot, Exit: &exit}
	return true
}

// newRunner returns a runner whose journal is records.
func newRunner(b *Batch, n *node, records *[]Record) *Runner {
	r := NewReplay(b)
	for _, rec := range *records {
		r.Add(rec)
	}
	return &Runner{
		Batch: b, Replay: r, Start: n.startWorker, Yield: func(time.Duration) bool { return false }, Now: time.Now,
		Record: func(rec Record) error { *records = append(*records, rec); return nil },
	}
}

func newTasks(n int) (tasks []Task) {
	for range n {
		tasks = append(tasks, Task{Argv: []string{"x"}, Request: "1"})
	}
	return tasks
}

func endAlways(d time.Duration, code int) func(Job, string) (time.Duration, Exit) {
	return func(Job, string) (time.Duration, Exit) { return d, Exit{Code: code} }
}

// TestRunnerUsesAllDevices: 100 tasks of a second on 8 devices take 13 seconds.
func TestRunnerUsesAllDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(8, endAlways(time.Second, 0))
		var records []Record
		r := newRunner(&Batch{Slots: 8, Tasks: newTasks(100)}, n, &records)
		begun := time.Now()
		if err := r.Run(); err != nil || n.problems != nil {
			t.Fatal(err, n.problems)
		}
		if took := time.Since(begun); took != 13*time.Second || n.most != 8 || r.Count().Succeeded != 100 {
			t.Errorf("%v, %d at once, %+v", took, n.most, r.Count())
		}
	})
}

// TestRetryOnOtherDevice: a task that fails on one device is started on another, and a task that always fails is started as often as it may be, with longer waits between.
func TestRetryOnOtherDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var devices []string
		var begun []time.Duration
		start := time.Now()
		n := newNode(4, func(j Job, device string) (time.Duration, Exit) {
			if j.Number != 2 {
				return 20 * time.Second, Exit{}
			}
			devices, begun = append(devices, device), append(begun, time.Since(start))
			return time.Second, Exit{Code: 1}
		})
		b := &Batch{Slots: 4, Backoff: time.Second, Tasks: newTasks(3)}
		b.Tasks[1].Retries = 3
		var records []Record
		r := newRunner(b, n, &records)
		if err := r.Run(); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(begun) != "[0s 2s 5s 10s]" {
			t.Errorf("it begins after %v", begun)
		}
		if len(devices) != 4 || devices[0] == devices[1] {
			t.Errorf("devices %v", devices)
		}
		if s := r.States[1]; s.Outcome != Failed || s.Attempts != 4 || r.Count().Succeeded != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestMaxFails: after so many failures no task is started; with FailFast running ones are killed, and are left for a resumed batch.
func TestMaxFails(t *testing.T) {
	for _, fast := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(4, func(j Job, _ string) (time.Duration, Exit) {
				return time.Duration(j.Number) * time.Second, Exit{Code: j.Number % 2}
			})
			var records []Record
			r := newRunner(&Batch{Slots: 4, MaxFails: 2, FailFast: fast, Tasks: newTasks(20)}, n, &records)
			begun := time.Now()
			if err := r.Run(); err != nil {
				t.Fatal(err)
			}
			want := map[bool]string{false: "3 of 20 succeeded, 3 failed, 14 left 8s", true: "1 of 20 succeeded, 2 failed, 17 left 3s"}[fast]
			if got := r.Count().Summary() + " " + time.Since(begun).String(); got != want {
				t.Errorf("fast %v: %s, want %s", fast, got, want)
			}
		})
	}
}

// TestDrainAndKill: after the first ^C no task is started, and the second kills those that run. They are pending in a resumed batch, however often that happens.
func TestDrainAndKill(t *testing.T) {
	for _, reports := range []bool{false, true} {
		testDrainAndKill(t, reports)
	}
}

func testDrainAndKill(t *testing.T, reports bool) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(2, endAlways(10*time.Second, 0))
		n.reports = reports
		var records []Record
		b := &Batch{Slots: 2, Tasks: newTasks(6)}
		r := newRunner(b, n, &records)
		drain, kill := make(chan struct{}), make(chan struct{})
		r.Drain, r.Kill = drain, kill
		time.AfterFunc(15*time.Second, func() { close(drain) })
		time.AfterFunc(17*time.Second, func() { close(kill) })
		if err := r.Run(); err != nil {
			t.Fatal(err)
		}
		if got := r.Count().Summary(); got != "2 of 6 succeeded, 4 left" {
			t.Error(got)
		}
		for range maxLost + 1 {
			records = append(records, Record{Kind: Resumed})
			r = newRunner(b, n, &records)
			kill := make(chan struct{})
			r.Kill = kill
			time.AfterFunc(5*time.Second, func() { close(kill) })
			if err := r.Run(); err != nil || r.Count().Failed > 0 {
				t.Fatalf("%v, %s", err, r.Count().Summary())
			}
		}
		records = append(records, Record{Kind: Resumed})
		r = newRunner(b, n, &records)
		if err := r.Run(); err != nil || r.Count().Succeeded != 6 {
			t.Errorf("%v, %s", err, r.Count().Summary())
		}
	})
}

// TestYield: when another user waits, a worker gives its devices back after its task.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(1, endAlways(time.Second, 0))
		var records []Record
		r := newRunner(&Batch{Slots: 1, Tasks: newTasks(5)}, n, &records)
		waits := true
		r.Yield = func(time.Duration) bool { return waits }
		go func() {
			<-n.free
			waits = false
			time.Sleep(10 * time.Second)
			n.free <- "0"
		}()
		begun := time.Now()
		if err := r.Run(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != 15*time.Second {
			t.Errorf("the batch took %v", took)
		}
	})
}

// TestJournalFails: a task isn't started if the journal can't say so.
func TestJournalFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(2, endAlways(time.Second, 0))
		var records []Record
		r := newRunner(&Batch{Slots: 2, Tasks: newTasks(9)}, n, &records)
		full := errors.New("no space left")
		add := r.Record
		r.Record = func(rec Record) error {
			if len(records) >= 3 {
				return full
			}
			return add(rec)
		}
		if err := r.Run(); !errors.Is(err, full) || len(n.runs) != 2 {
			t.Errorf("error %v, runs %v", err, n.runs)
		}
	})
}

// TestWorkerWithoutLease: a request that can't be granted ends the batch with its error.
func TestWorkerWithoutLease(t *testing.T) {
	var records []Record
	r := newRunner(&Batch{Slots: 2, Tasks: newTasks(9)}, newNode(1, nil), &records)
	r.Start = func(_ string, slot int, events chan<- Event) (Worker, error) {
		events <- Event{Slot: slot, Gone: true, Err: errors.New("node has 8 GPUs")}
		return fakeWorker{nil, make(chan Job, 1), make(chan struct{})}, nil
	}
	if err := r.Run(); err == nil || !strings.HasPrefix(err.Error(), "node has 8 GPUs") {
		t.Errorf("error %v", err)
	}
}

// TestRandomBatches: batches of random tasks are killed at a random time and resumed. At the end each task has succeeded, has failed on all its attempts, or was skipped
// because a task before it had failed. No task starts before the tasks of its After have succeeded, and no task starts after it has ended.
func TestRandomBatches(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := &Batch{Slots: rapid.IntRange(1, 5).Draw(rt, "slots"), Backoff: time.Second}
		for i := range rapid.IntRange(1, 20).Draw(rt, "tasks") {
			task := Task{Argv: []string{"x"}, Request: rapid.SampledFrom([]string{"", "1", "1", "2"}).Draw(rt, "request"), Retries: rapid.IntRange(0, 2).Draw(rt, "retries")}
			for n := range i {
				if rapid.IntRange(0, 5).Draw(rt, "after") == 0 {
					task.After = append(task.After, n+1)
				}
			}
			b.Tasks = append(b.Tasks, task)
		}
		seed := rapid.IntRange(0, 1000).Draw(rt, "seed")
		took := func(j Job, device string) (time.Duration, Exit) {
			x := (seed + 7*j.Number + 13*j.Attempt) % 11
			return time.Duration(x) * time.Second, Exit{Code: map[bool]int{true: 1}[x > 7], Lost: x == 5 && j.Attempt == 1 && device != "0"}
		}
		cut := time.Duration(rapid.IntRange(1, 40).Draw(rt, "cut")) * time.Second
		synctest.Test(t, func(t *testing.T) {
			n := newNode(rapid.IntRange(1, 4).Draw(rt, "devices"), took)
			var records []Record
			r := newRunner(b, n, &records)
			kill := make(chan struct{})
			r.Kill = kill
			defer time.AfterFunc(cut, func() { close(kill) }).Stop()
			if err := r.Run(); err != nil {
				rt.Fatal(err)
			}
			// As after kill -9: the ends of the tasks that were killed aren't in the journal.
			for len(records) > 0 && records[len(records)-1].Kind == Ended && records[len(records)-1].Exit.Lost {
				records = records[:len(records)-1]
			}
			records = append(records, Record{Kind: Resumed})
			r = newRunner(b, n, &records)
			if err := r.Run(); err != nil || n.problems != nil {
				rt.Fatal(err, n.problems)
			}
			checkRecords(rt, b, records)
		})
	})
}

// checkRecords fails unless the records are those of a batch that has ended properly.
func checkRecords(t *rapid.T, b *Batch, records []Record) {
	t.Helper()
	ended := NewReplay(b)
	for i, rec := range records {
		if rec.Task > 0 && ended.States[rec.Task-1].Outcome != Pending {
			t.Fatalf("record %d: task %d had ended: %+v", i, rec.Task, rec)
		}
		if rec.Kind == Started {
			if ended.States[rec.Task-1].Running {
				t.Fatalf("record %d: task %d runs twice", i, rec.Task)
			}
			for _, n := range b.Tasks[rec.Task-1].After {
				if ended.States[n-1].Outcome != Succeeded {
					t.Fatalf("record %d: task %d begins before task %d has succeeded", i, rec.Task, n)
				}
			}
		}
		ended.Add(rec)
	}
	for i, s := range ended.States {
		task := b.Tasks[i]
		failedBefore := slices.ContainsFunc(task.After, func(n int) bool { return ended.States[n-1].Outcome != Succeeded })
		switch {
		case s.Outcome == Succeeded && !failedBefore, s.Outcome == Unstarted && failedBefore:
		case s.Outcome == Failed && (s.Attempts == task.Retries+1 || s.Lost > maxLost):
		default:
			t.Fatalf("task %d: %+v", i+1, s)
		}
	}
}
