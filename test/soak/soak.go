package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

type options struct {
	ops, procs int
	held       int // leases that are there during a burst
	dir        string
	out        io.Writer
	progress   time.Duration
}

// soak runs everything and returns an error if the promise was broken.
func soak(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for control groups")
	}
	r, err := newRun(o, "worker")
	if err != nil {
		return err
	}
	defer r.clean()
	started := time.Now()
	if err := r.loop(ctx); err != nil {
		return err
	}
	took := time.Since(started)
	if err := r.killAll(); err != nil {
		return err
	}
	if err := r.checkAllFree(); err != nil {
		return err
	}
	s := r.stats
	reaped, err := r.reaped()
	if err != nil {
		return err
	}
	fmt.Fprintf(o.out, "%d operations by %d processes in %v: %.0f ops/s (%d acquired, %d refused, %d released; %d waited)\n",
		s.ops(), o.procs, took.Round(time.Millisecond), float64(s.ops())/took.Seconds(),
		s.acquired.Load(), s.refused.Load(), s.released.Load(), s.waits.Load())
	fmt.Fprintf(o.out, "%d containers, %d of them left by their makers, %d bound explicitly\n",
		s.containers.Load(), s.left.Load(), s.bound.Load())
	fmt.Fprintf(o.out, "%d killed with SIGKILL from outside, %d by themselves in the middle of a change; %s leases reaped\n",
		r.kills, s.selfKills.Load(), reaped)
	fmt.Fprintf(o.out, "acquire + release: p50 %v, p99 %v (under kills, %d processes on %d CPUs)\n",
		s.quantile(.5).Round(time.Microsecond), s.quantile(.99).Round(time.Microsecond), o.procs, cpus())
	fmt.Fprintln(o.out, "ok: no device ever had two living holders, and with all dead everything was free")
	return nil
}

// run is the controller of one soak or benchmark.
type run struct {
	o     options
	scene scene
	stats *stats
	role  string
	kills int

	mu      sync.Mutex
	workers map[int]*exec.Cmd
	failed  error
	ended   chan struct{} // a worker has ended
}

func newRun(o options, role string) (*run, error) {
	dir := o.dir
	if dir == "" {
		parent := ""
		if atomicfile.Volatile("/dev/shm") {
			parent = "/dev/shm"
		}
		var err error
		if dir, err = os.MkdirTemp(parent, "berth-soak-"); err != nil {
			return nil, err
		}
	}
	s, err := openScene(dir)
	if err != nil {
		return nil, err
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	st, err := openStats(s.path("stats"))
	if err != nil {
		return nil, err
	}
	// Containers whose creating process was killed become our children, so they have to be reaped.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	return &run{o: o, scene: s, stats: st, role: role, workers: map[int]*exec.Cmd{}, ended: make(chan struct{}, o.procs)}, nil
}

// clean removes what the run made; a directory that the caller named stays.
func (r *run) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := errors.Join(r.killAll(), r.scene.tree.Remove(ctx, r.scene.group))
	// A process that was killed while it held the lock has left its queue; the next process removes
	// it.
	err = errors.Join(err, r.scene.ledger(nil).Release(ctx, ""))
	if r.o.dir == "" {
		err = errors.Join(err, os.RemoveAll(r.scene.dir))
	}
	if err != nil {
		fmt.Fprintln(r.o.out, "clean up:", err)
	}
}

// loop keeps workers working, and kills some, until the target is reached.
func (r *run) loop(ctx context.Context) error {
	reader := r.scene.ledger(nil)
	kill := time.NewTicker(15 * time.Millisecond)
	defer kill.Stop()
	report := time.NewTicker(max(r.o.progress, time.Millisecond))
	defer report.Stop()
	for r.stats.ops() < int64(r.o.ops) {
		if err := r.startWorkers(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ended:
		case <-kill.C:
			r.killOne()
			if _, err := reader.View(); err != nil {
				return fmt.Errorf("read: %w", err)
			}
		case <-report.C:
			if r.o.progress > 0 {
				fmt.Fprintf(r.o.out, "… %d of %d operations, %d kills\n", r.stats.ops(), r.o.ops, r.kills)
			}
		}
		if err := r.failure(); err != nil {
			return err
		}
	}
	return r.failure()
}

func (r *run) failure() error {
	if b, err := os.ReadFile(r.scene.path("violation")); err == nil {
		return fmt.Errorf("container: %s", b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// startWorkers starts workers until there are as many as there should be.
func (r *run) startWorkers() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.workers) < r.o.procs {
		cmd := exec.Command("/proc/self/exe", roleArg, r.role, r.scene.dir, strconv.Itoa(r.o.ops))
		cmd.Args[0], cmd.SysProcAttr = os.Args[0], withoutTerminal()
		said := &bytes.Buffer{}
		cmd.Stderr = said
		// A worker that was killed leaves containers that hold its end of the pipe.
		cmd.WaitDelay = time.Millisecond
		if err := cmd.Start(); err != nil {
			return err
		}
		r.workers[cmd.Process.Pid] = cmd
		go r.wait(cmd, said)
	}
	return nil
}

// withoutTerminal puts a worker into a session of its own, as those of engines are.
func withoutTerminal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// wait records how a worker ended: killed and done are fine, anything else isn't.
func (r *run) wait(cmd *exec.Cmd, said *bytes.Buffer) {
	err := cmd.Wait()
	var exit *exec.ExitError
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, cmd.Process.Pid)
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled()
	if err != nil && !killed && !errors.Is(err, exec.ErrWaitDelay) && r.failed == nil {
		r.failed = fmt.Errorf("worker: %w: %s", err, said)
	}
	select {
	case r.ended <- struct{}{}:
	default:
	}
}

// killOne kills a random worker or, now and then, a container, and reaps containers that have
// become our children.
func (r *run) killOne() {
	r.kills++
	if rand.IntN(4) == 0 {
		if pids, err := r.scene.tree.PIDs(r.scene.group); err == nil && len(pids) > 0 {
			_ = syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL) // it may have ended
		}
		r.reapAdopted()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range r.workers { // in random order
		_ = cmd.Process.Kill() // it may have ended
		return
	}
}

// reapAdopted reaps adopted containers. It can't wait for just any child: those that are
// workers belong to exec.
func (r *run) reapAdopted() {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err != nil {
		return
	}
	for _, f := range bytes.Fields(b) {
		pid, err := strconv.Atoi(string(f))
		r.mu.Lock()
		_, isWorker := r.workers[pid]
		r.mu.Unlock()
		if err == nil && !isWorker {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // not dead yet: reaped by a later call
		}
	}
}

// killAll kills every worker and every container.
func (r *run) killAll() error {
	for {
		r.mu.Lock()
		n := len(r.workers)
		for _, cmd := range r.workers {
			_ = cmd.Process.Kill() // it may have ended
		}
		r.mu.Unlock()
		if n == 0 {
			break
		}
		<-r.ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := r.scene.tree.Kill(ctx, r.scene.group)
	r.reapAdopted()
	return errors.Join(err, r.failure())
}

// checkAllFree checks the second half of the promise: all devices are free in the end.
func (r *run) checkAllFree() error {
	wanted, err := request.Parse(everything())
	if err != nil {
		return err
	}
	l := r.scene.ledger(nil)
	var lease ledger.Lease
	for range 2 { // under load, receipts of dead holders may stay a little longer
		if err := l.Release(context.Background(), lease.ID); err != nil {
			return err
		}
		lease, err = l.Acquire(context.Background(), ledger.Ask{Owner: ledger.Owner{EntryPoint: "soak"}, Request: wanted, Inventory: inventory(2)})
		if err != nil {
			return fmt.Errorf("all are dead, and yet not everything is free: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if _, err := r.scene.hold(lease.Devices); err != nil {
		return err
	}
	v, err := l.View()
	if err != nil || len(v.Leases) != 1 || len(v.Queue) != 0 {
		return fmt.Errorf("left over: %+v, %w", v, err)
	}
	receipts, err := os.ReadDir(r.scene.path("run", "leases"))
	if err != nil || len(receipts) != 1 {
		return fmt.Errorf("receipts left over: %v, %w", receipts, err)
	}
	return l.Release(context.Background(), lease.ID)
}
