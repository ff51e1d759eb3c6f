package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// burst measures a simultaneous start: many processes, each of which has started but not used the
// ledger before, take one slice and release it, once. Meanwhile there are as many other leases as
// held says.
func burst(ctx context.Context, o options) error {
	r, err := newRun(o, "burst")
	if err != nil {
		return err
	}
	defer r.clean()
	if err := r.hold(ctx, o.held); err != nil {
		return err
	}
	var pairs, whole []time.Duration
	for len(pairs) < o.ops {
		took, total, err := r.oneBurst(ctx)
		if err != nil {
			return err
		}
		pairs, whole = append(pairs, took...), append(whole, total)
	}
	slices.Sort(pairs)
	slices.Sort(whole)
	at := func(of []time.Duration, percent int) time.Duration {
		return of[(len(of)-1)*percent/100].Round(time.Microsecond)
	}
	fmt.Fprintf(o.out, "acquire + release, a burst of %d processes on %d CPUs, %d leases held: p50 %v, p99 %v; all done after %v (%d bursts)\n",
		o.procs, cpus(), o.held, at(pairs, 50), at(pairs, 99), at(whole, 50), len(whole))
	return nil
}

// hold takes leases that stay until the run is over; they are the controller's own.
func (r *run) hold(ctx context.Context, n int) error {
	wanted, err := request.Parse("1g.10gb")
	if err != nil {
		return err
	}
	l := r.scene.ledger(nil)
	for range n {
		_, err := l.Acquire(ctx, ledger.Ask{Owner: ledger.Owner{EntryPoint: "bench"}, Request: wanted, Inventory: inventory(1)})
		if err != nil {
			return err
		}
	}
	return nil
}

// oneBurst returns how long each pair took for its process, and the time from the
// starting signal to the last one's end.
func (r *run) oneBurst(ctx context.Context) (took []time.Duration, whole time.Duration, err error) {
	signal, start, err := os.Pipe() // readers wake when it is closed
	if err != nil {
		return nil, 0, err
	}
	defer signal.Close()
	defer start.Close() // after an error; otherwise it is closed already
	said := make([]lines, r.o.procs)
	restore := wideTimers()
	for i := range said {
		if said[i], err = r.startOne(ctx, signal); err != nil {
			restore()
			return nil, 0, errors.Join(err, stop(said[:i], start))
		}
	}
	restore()
	for _, w := range said {
		if _, err := w.number(); err != nil { // the worker is ready
			return nil, 0, errors.Join(err, stop(said, start))
		}
	}
	time.Sleep(20 * time.Millisecond) // until all are asleep
	var begin, end int64
	begin = monotonic()
	if err := start.Close(); err != nil {
		return nil, 0, err
	}
	for _, w := range said {
		pair, err1 := w.number()
		done, err2 := w.number()
		if err := errors.Join(err1, err2, w.cmd.Wait()); err != nil {
			return nil, 0, fmt.Errorf("worker: %w", err)
		}
		took, end = append(took, time.Duration(pair)), max(end, done)
	}
	return took, time.Duration(end - begin), nil
}

// wideTimers gives the processes that this goroutine starts the timer slack that
// berth-runtime gives the watcher thread of Go's runtime.
func wideTimers() (restore func()) {
	runtime.LockOSThread()
	set := func(slack uintptr) { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0) } // takes any number
	set(uintptr(time.Millisecond))
	return func() {
		set(0) // the usual
		runtime.UnlockOSThread()
	}
}

// lines are the numbers that a worker prints.
type lines struct {
	cmd *exec.Cmd
	out io.Reader
}

func (l lines) number() (n int64, err error) {
	_, err = fmt.Fscanln(l.out, &n)
	return n, err
}

func (r *run) startOne(ctx context.Context, signal *os.File) (lines, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", roleArg, r.role, r.scene.dir, strconv.Itoa(r.o.ops))
	cmd.Args[0], cmd.Stdin, cmd.Stderr, cmd.SysProcAttr = os.Args[0], signal, os.Stderr, withoutTerminal()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return lines{}, err
	}
	return lines{cmd, out}, cmd.Start()
}

// stop releases the processes that have started, and waits for them.
func stop(started []lines, start *os.File) error {
	errs := []error{start.Close()}
	for _, w := range started {
		if w.cmd != nil {
			errs = append(errs, w.cmd.Process.Kill(), w.cmd.Wait())
		}
	}
	return errors.Join(errs...)
}

// pair is a worker of a burst: ready, one acquire and release, done.
func (w *worker) pair(in io.Reader, out io.Writer) error {
	wanted, err := request.Parse("1g.10gb")
	if err != nil {
		return err
	}
	a := ledger.Ask{Owner: ledger.Owner{EntryPoint: "bench"}, Request: wanted, Inventory: w.inv, Wait: time.Minute}
	fmt.Fprintln(out, 0)
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("wait for the start: %w", err)
	}
	started := monotonic()
	lease, err := w.ledger.Acquire(context.Background(), a)
	if err != nil {
		return err
	}
	if err := w.ledger.Release(context.Background(), lease.ID); err != nil {
		return err
	}
	done := monotonic()
	fmt.Fprintf(out, "%d\n%d\n", done-started, done)
	return nil
}

// monotonic returns a time that processes can compare.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // can't fail
	return ts.Nano()
}
