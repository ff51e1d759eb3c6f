package batch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Worker runs tasks one after the other with one lease. Its methods don't block.
type Worker interface {
	// Run starts a task. The worker is idle.
	Run(Job)
	// Close ends the worker, which is idle.
	Close()
	// Kill ends the worker's task, and the worker. It may follow Close.
	Kill()
}

// Job is an attempt of a task.
type Job struct {
	Number int
	Task
	// Attempt counts from 1.
	Attempt int
}

// Event is what a worker reports: it is ready, its task has ended, or it has ended itself. The last event of each worker is Gone.
type Event struct {
	Slot int
	// Ready: the worker has a lease of these devices, and runs no task.
	Ready   bool
	Devices string
	// Exit is that of the worker's task.
	Exit *Exit
	// Gone: the worker has ended, with this error if it had no lease.
	Gone bool
	Err  error
}

// Outcome is how a task has ended.
type Outcome string

// The outcomes. Pending tasks have not ended.
const (
	Pending   Outcome = ""
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Unstarted Outcome = "skipped" // a task that it waits for has failed
)

// State is how far a task has come.
type State struct {
	Outcome  Outcome
	Running  bool
	Attempts int // that count
	Lost     int // attempts whose worker has ended, since the batch was started or resumed
	Exit     Exit
	Started  time.Time
	Ended    time.Time
	Devices  string
	Slot     int
}

// Replay is the state of each task of a batch after the records of its journal. A task that ran when its runner was killed is pending.
type Replay struct {
	batch  *Batch
	States []State // by number - 1
}

// NewReplay returns the states before the batch begins.
func NewReplay(b *Batch) *Replay { return &Replay{batch: b, States: make([]State, len(b.Tasks))} }

// Add applies a record. Records of tasks that the batch doesn't have are ignored.
func (r *Replay) Add(rec Record) {
	if rec.Kind == Resumed {
		for i := range r.States {
			if r.States[i].Running = false; r.States[i].Outcome == Pending {
				r.States[i].Lost = 0
			}
		}
	}
	if rec.Task < 1 || rec.Task > len(r.States) {
		return
	}
	s := &r.States[rec.Task-1]
	switch rec.Kind {
	case Started:
		s.Running, s.Started, s.Devices, s.Slot = true, rec.At, rec.Devices, rec.Slot
	case Skipped:
		s.Outcome, s.Ended = Unstarted, rec.At
	case Again:
		*s = State{}
	case Ended:
		s.recordEnd(rec.At, rec.Exit, r.batch.Tasks[rec.Task-1].Retries)
	}
}

// maxLost is how often a task is started again after its worker has ended.
const maxLost = 3

func (s *State) recordEnd(at time.Time, exit *Exit, retries int) {
	s.Running, s.Ended = false, at
	if exit == nil {
		return
	}
	s.Exit = *exit
	if exit.Lost {
		s.Lost++
	} else {
		s.Attempts++
	}
	switch {
	case !exit.Failed():
		s.Outcome = Succeeded
	case !exit.Lost && s.Attempts > retries, s.Lost > maxLost:
		s.Outcome = Failed
	}
}

// Reset makes tasks that have failed, and those that were skipped, pending again.
func (r *Replay) Reset(record func(Record) error, now time.Time) error {
	for i := range r.States {
		if o := r.States[i].Outcome; o == Failed || o == Unstarted {
			rec := Record{Kind: Again, At: now, Task: i + 1}
			if err := record(rec); err != nil {
				return err
			}
			r.Add(rec)
		}
	}
	return nil
}

// Counts are the numbers of tasks by state.
type Counts struct {
	Total     int `json:"total"`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Skipped   int `json:"skipped"`
}

// Left is how many tasks have not ended and don't run.
func (c Counts) Left() int { return c.Total - c.Running - c.Succeeded - c.Failed - c.Skipped }

// Count counts the tasks.
func (r *Replay) Count() (c Counts) {
	c.Total = len(r.States)
	for i := range r.States {
		c.addState(&r.States[i], 1)
	}
	return c
}

func (c *Counts) addState(s *State, n int) {
	switch {
	case s.Running:
		c.Running += n
	case s.Outcome == Succeeded:
		c.Succeeded += n
	case s.Outcome == Failed:
		c.Failed += n
	case s.Outcome == Unstarted:
		c.Skipped += n
	}
}

// Runner runs the tasks of a batch that have not ended. It is used by one goroutine.
type Runner struct {
	Batch *Batch
	// Replay is the state from the journal.
	*Replay
	// Record writes to the journal. An error ends the batch: without the journal a task could be repeated.
	Record func(Record) error
	// Start starts a worker with a lease of this request; it sends its events. Start doesn't wait for the lease.
	Start func(request string, slot int, events chan<- Event) (Worker, error)
	// Yield reports whether a worker that has held its lease for this time should give it back, because others wait for devices. It is
	// called after each task, and must be fast.
	Yield func(held time.Duration) bool
	// Changed is called after each change of a task's state. It may be nil.
	Changed func(number int, counts Counts)
	// Refresh is called now and then while nothing changes. It may be nil.
	Refresh func(counts Counts)
	// Drain ends the start of tasks when it is closed, and Kill ends running tasks, too.
	Drain, Kill <-chan struct{}
	Now         func() time.Time

	counts   Counts
	workers  map[int]*slot
	ready    map[string][]int // numbers of tasks that can start, by request, in the order of the batch
	waiting  []int            // unmet dependencies by task
	follow   map[int][]int
	later    []retry
	avoid    map[int]string // devices on which a task has failed
	draining bool
	failure  error
	events   chan Event
}

type slot struct {
	worker  Worker
	request string
	devices string
	ready   bool
	since   time.Time // it is ready
	closing bool
	killed  bool
	job     int // the task's number, 0 if it is idle
}

type retry struct {
	number int
	at     time.Time
}

// Run runs the batch, until all tasks have ended or Drain or MaxFails have ended it. It returns an error if it could not run the tasks; failed tasks are none.
func (r *Runner) Run() error {
	r.workers, r.ready, r.avoid, r.events = map[int]*slot{}, map[string][]int{}, map[int]string{}, make(chan Event, 2*r.Batch.Slots)
	r.follow, r.waiting, r.counts = r.Batch.listFollowers(), make([]int, len(r.Batch.Tasks)), r.Count()
	for i, t := range r.Batch.Tasks {
		for _, n := range t.After {
			if r.States[n-1].Outcome != Succeeded {
				r.waiting[i]++
			}
		}
		if r.waiting[i] == 0 && r.States[i].Outcome == Pending {
			r.ready[t.Request] = append(r.ready[t.Request], i+1)
		}
	}
	for i := range r.Batch.Tasks { // a runner that was killed may have left some
		if o := r.States[i].Outcome; o == Failed || o == Unstarted {
			r.skipFollowers(i + 1)
		}
	}
	r.checkFails()
	for {
		if !r.draining {
			r.startTasks()
		}
		r.closeIdle()
		if len(r.workers) == 0 && (r.draining || len(r.later) == 0) {
			return r.failure
		}
		r.awaitEvent()
	}
}

const refreshInterval = time.Second

// awaitEvent waits for an event, a retry that is due, or a request to end.
func (r *Runner) awaitEvent() {
	var due <-chan time.Time
	if len(r.later) > 0 && !r.draining {
		next := slices.MinFunc(r.later, func(a, b retry) int { return a.at.Compare(b.at) })
		timer := time.NewTimer(max(next.at.Sub(r.Now()), 0))
		defer timer.Stop()
		due = timer.C
	}
	refresh := time.NewTimer(refreshInterval)
	defer refresh.Stop()
	drain, kill := r.Drain, r.Kill
	if r.draining {
		drain = nil
	}
	select {
	case e := <-r.events:
		r.handleEvent(e)
	case <-due:
		r.queueDue()
	case <-refresh.C:
		if r.Refresh != nil {
			r.Refresh(r.counts)
		}
	case <-drain:
		r.draining = true
	case <-kill:
		r.killAll()
		r.Kill = nil
	}
}

func (r *Runner) killAll() {
	r.draining = true
	for _, s := range r.workers {
		s.killWorker()
	}
}

// killWorker kills the worker, once.
func (s *slot) killWorker() {
	if !s.killed {
		s.worker.Kill()
	}
	s.closing, s.killed = true, true
}

// endBatch ends the batch because of an error that isn't a task's.
func (r *Runner) endBatch(err error) {
	r.failure = errors.Join(r.failure, err)
	r.draining = true
}

// startTasks gives ready tasks to idle workers, and starts workers for others.
func (r *Runner) startTasks() {
	for n, s := range r.workers {
		if s.ready && s.job == 0 && !s.closing {
			r.assignTask(n, s)
		}
	}
	for request, numbers := range r.ready {
		for missing := len(numbers) - r.idleWorkers(request); missing > 0 && len(r.workers) < r.Batch.Slots && !r.draining; missing-- {
			r.startWorker(request)
		}
	}
}

// idleWorkers counts the workers that can take a task of this request: idle ones, and ones that have no lease yet.
func (r *Runner) idleWorkers(request string) (n int) {
	for _, s := range r.workers {
		if s.request == request && s.job == 0 && !s.closing {
			n++
		}
	}
	return n
}

func (r *Runner) startWorker(request string) {
	n := 1
	for r.workers[n] != nil {
		n++
	}
	w, err := r.Start(request, n, r.events)
	if err != nil {
		r.endBatch(err)
		return
	}
	r.workers[n] = &slot{worker: w, request: request}
}

// assignTask gives a worker the first ready task. A task that has failed on the worker's devices is left to another worker, if there can be one.
func (r *Runner) assignTask(n int, s *slot) {
	ready := r.ready[s.request]
	if len(ready) == 0 {
		return
	}
	i := slices.IndexFunc(ready, func(number int) bool { return r.avoid[number] == "" || r.avoid[number] != s.devices })
	if i < 0 {
		if i = 0; r.hasOther(s) {
			return
		}
	}
	number := ready[i]
	if r.ready[s.request] = ready[1:]; i > 0 { // without a copy: a batch can have 100,000 tasks
		r.ready[s.request] = slices.Delete(ready, i, i+1)
	}
	if len(r.ready[s.request]) == 0 {
		delete(r.ready, s.request)
	}
	state := &r.States[number-1]
	rec := Record{Kind: Started, At: r.Now(), Task: number, Devices: s.devices, Slot: n}
	if err := r.Record(rec); err != nil {
		r.endBatch(err)
		return
	}
	s.job = number
	r.changeState(number, func() { r.Add(rec) })
	s.worker.Run(Job{Number: number, Task: r.Batch.Tasks[number-1], Attempt: state.Attempts + 1})
}

// hasOther reports whether another worker of the same request has other devices. One that waits for a lease may wait for the devices of s.
func (r *Runner) hasOther(s *slot) bool {
	for _, o := range r.workers {
		if o != s && o.request == s.request && !o.closing && o.ready && o.devices != s.devices {
			return true
		}
	}
	return false
}

// changeState changes the state of a task, and reports it.
func (r *Runner) changeState(number int, f func()) {
	s := &r.States[number-1]
	r.counts.addState(s, -1)
	f()
	r.counts.addState(s, 1)
	if r.Changed != nil {
		r.Changed(number, r.counts)
	}
}

// closeIdle closes the workers that have no task to run, because they hold devices.
func (r *Runner) closeIdle() {
	spare := map[string]int{}
	for request, numbers := range r.ready {
		spare[request] = len(numbers)
	}
	for _, s := range r.workers {
		switch {
		case s.closing || s.job != 0:
		case r.draining || spare[s.request] == 0:
			if !s.ready { // it waits for a lease
				s.killWorker()
				continue
			}
			s.closing = true
			s.worker.Close()
		default:
			spare[s.request]--
		}
	}
}

func (r *Runner) handleEvent(e Event) {
	s := r.workers[e.Slot]
	switch {
	case s == nil:
	case e.Gone:
		delete(r.workers, e.Slot)
		if s.job != 0 {
			r.endTask(s, Exit{Code: 137, Lost: true, Why: "its worker was killed"})
		} else if !s.ready && !s.closing && e.Err != nil {
			r.endBatch(e.Err)
		}
	case e.Ready:
		s.ready, s.since, s.devices = true, r.Now(), e.Devices
	case e.Exit != nil && s.job != 0:
		exit := *e.Exit
		if exit.Lost = exit.Lost || s.killed && exit.Failed(); exit.Lost { // it is pending when the batch is resumed
			exit.Why = cmp.Or(exit.Why, "it was killed")
		}
		again := r.endTask(s, exit)
		if s.request != "" && (again || r.Yield(r.Now().Sub(s.since))) { // a retry gets other devices, if there are any
			s.closing = true
			s.worker.Close()
		}
	}
}

// endTask records the end of a worker's task, and what follows from it. It reports whether the task will be started again.
func (r *Runner) endTask(s *slot, exit Exit) (again bool) {
	number := s.job
	s.job = 0
	rec := Record{Kind: Ended, At: r.Now(), Task: number, Exit: &exit}
	if err := r.Record(rec); err != nil {
		r.endBatch(err)
	}
	r.changeState(number, func() { r.Add(rec) })
	state := r.States[number-1]
	switch state.Outcome {
	case Pending:
		r.avoid[number] = s.devices
		r.later = append(r.later, retry{number, r.Now().Add(r.computeBackoff(state))})
	case Succeeded:
		delete(r.avoid, number)
		for _, f := range r.follow[number] {
			if r.waiting[f-1]--; r.waiting[f-1] == 0 && r.States[f-1].Outcome == Pending {
				r.queueTask(f)
			}
		}
	case Failed:
		r.skipFollowers(number)
		r.checkFails()
	}
	return state.Outcome == Pending
}

// maxBackoff bounds the wait before a retry.
const maxBackoff = 10 * time.Minute

func (r *Runner) computeBackoff(s State) time.Duration {
	if s.Exit.Lost || s.Attempts == 0 {
		return 0
	}
	return min(r.Batch.Backoff<<min(s.Attempts-1, 20), maxBackoff)
}

func (r *Runner) queueDue() {
	now := r.Now()
	for _, l := range r.later {
		if !l.at.After(now) {
			r.queueTask(l.number)
		}
	}
	r.later = slices.DeleteFunc(r.later, func(l retry) bool { return !l.at.After(now) })
}

// queueTask puts a task where its number belongs.
func (r *Runner) queueTask(number int) {
	request := r.Batch.Tasks[number-1].Request
	i, _ := slices.BinarySearch(r.ready[request], number)
	r.ready[request] = slices.Insert(r.ready[request], i, number)
}

// skipFollowers ends the tasks that wait for a task that won't succeed.
func (r *Runner) skipFollowers(number int) {
	for _, f := range r.follow[number] {
		if r.States[f-1].Outcome != Pending {
			continue
		}
		rec := Record{Kind: Skipped, At: r.Now(), Task: f}
		if err := r.Record(rec); err != nil {
			r.endBatch(err)
		}
		r.changeState(f, func() { r.Add(rec) })
		r.skipFollowers(f)
	}
}

func (r *Runner) checkFails() {
	if r.Batch.MaxFails == 0 || r.counts.Failed < r.Batch.MaxFails || r.draining {
		return
	}
	r.draining = true
	if r.Batch.FailFast {
		r.killAll()
	}
}

// Summary says in a line how the batch stands.
func (c Counts) Summary() string {
	text := fmt.Sprintf("%d of %d succeeded", c.Succeeded, c.Total)
	for _, part := range []struct {
		n    int
		what string
	}{{c.Failed, "failed"}, {c.Skipped, "skipped"}, {c.Running, "running"}, {c.Left(), "left"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return text
}
