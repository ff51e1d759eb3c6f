package monitor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/supervise"
)

// reaper collects the exit status of every child of this process: runtimes, the first processes of
// containers, and orphans. Only exec.Cmd may wait for a child as well, see run. It is safe for
// concurrent use.
type reaper struct {
	mu sync.Mutex
	// exited has the children that were collected and not awaited yet.
	exited  map[int]unix.WaitStatus
	awaited map[int]*supervise.Ending
}

// newReaper returns a reaper that collects from now on.
func newReaper() *reaper {
	r := &reaper{exited: map[int]unix.WaitStatus{}, awaited: map[int]*supervise.Ending{}}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			r.collect()
		}
	}()
	return r
}

// collect collects all children that have exited. When it returns, the Ending of each is
// set.
func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if e := r.awaited[pid]; e != nil {
			delete(r.awaited, pid)
			e.Set(status, nil)
		} else {
			r.exited[pid] = status
		}
	}
}

// await returns the ending of a child, which may have exited already. It is called once for each
// child.
func (r *reaper) await(pid int) *supervise.Ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := supervise.NewEnding()
	if status, ok := r.exited[pid]; ok {
		delete(r.exited, pid)
		e.Set(status, nil)
	} else {
		r.awaited[pid] = e
	}
	return e
}

// forget drops the children that have exited and were not awaited. Their pids may be reused.
func (r *reaper) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.exited)
}

// run runs a program to its end. Either exec.Cmd or the reaper collects the exit status.
func (r *reaper) run(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	if !errors.Is(err, unix.ECHILD) {
		return err
	}
	r.mu.Lock()
	status, ok := r.exited[cmd.Process.Pid]
	delete(r.exited, cmd.Process.Pid)
	r.mu.Unlock()
	switch {
	case !ok:
		return err
	case status != 0:
		return exitError(status)
	}
	return nil
}

// exitError is the status of a program that has failed.
type exitError unix.WaitStatus

func (e exitError) Error() string {
	if s := unix.WaitStatus(e); s.Signaled() {
		return "ended by signal " + s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", unix.WaitStatus(e).ExitStatus())
}

// ExitCode returns the exit code, -1 if a signal has ended the program.
func (e exitError) ExitCode() int { return unix.WaitStatus(e).ExitStatus() }
