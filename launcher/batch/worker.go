package batch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// Order is a line of JSON that a worker process reads: what to run next.
type Order struct {
	Argv    []string      `json:"argv"`
	Env     []string      `json:"env,omitempty"`
	Dir     string        `json:"dir"`
	Out     string        `json:"out"`
	Err     string        `json:"err"`
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Report is a line of JSON that a worker process writes: first that it is ready, then one after each task.
type Report struct {
	Ready bool `json:"ready,omitempty"`
	// Devices are those of the worker's lease: the UUIDs of GPUs and MIG slices, and the names of others, separated by commas.
	Devices string `json:"devices,omitempty"`
	Exit    *Exit  `json:"exit,omitempty"`
}

// Self as the first word of a command is this program.
const Self = "berth"

// Grace is the time between SIGTERM and SIGKILL for a task whose time is over or whose runner has ended.
const Grace = 10 * time.Second

// Serve is the worker process: it runs the tasks of the orders one after the other, and returns at the end of in. A task that is running then gets SIGTERM, and SIGKILL
// after [Grace]. At the end of a task its remaining processes are killed, so that the next task has the devices to itself. proc is where procfs is mounted, and env
// are the variables that tasks have in addition to their own.
//
// While it runs, Serve changes the state of the whole process: it becomes the parent of orphans.
func Serve(in io.Reader, out io.Writer, devices, proc string, env []string) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	report := json.NewEncoder(out)
	if err := report.Encode(Report{Ready: true, Devices: devices}); err != nil {
		return err
	}
	orders := make(chan Order)
	ended := make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		lines := json.NewDecoder(bufio.NewReader(in))
		for {
			var o Order
			if err := lines.Decode(&o); err != nil {
				if !errors.Is(err, io.EOF) {
					failed = err
				}
				return
			}
			orders <- o
		}
	}()
	// A task is killed when the thread that has started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case o := <-orders:
			exit := runOrder(o, proc, env, ended)
			if err := report.Encode(Report{Exit: &exit}); err != nil {
				return err
			}
		case <-ended:
			return failed
		}
	}
}

// runOrder runs a task, and removes what it leaves behind.
func runOrder(o Order, proc string, env []string, ended <-chan struct{}) (exit Exit) {
	begun := time.Now()
	defer func() { exit.Seconds = time.Since(begun).Seconds() }()
	out, err := openOutput(o.Out)
	if err != nil {
		return failedExit(err)
	}
	defer closeOutput(out)
	errs, err := openOutput(o.Err)
	if err != nil {
		return failedExit(err)
	}
	defer closeOutput(errs)
	cmd := exec.Command(o.Argv[0], o.Argv[1:]...)
	if o.Argv[0] == Self {
		cmd.Path, cmd.Err = "/proc/self/exe", nil
	}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = o.Dir, slices.Concat(env, o.Env), out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(errs, "berth:", err)
		return failedExit(err)
	}
	over := make(chan string, 1)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchTask(cmd.Process.Pid, o.Timeout, ended, done, over)
	}()
	_ = cmd.Wait() // the state says more
	close(done)
	<-watched // no signal hits a later process of this pid
	killRest(proc, cmd.Process.Pid)
	exit = describeEnd(cmd.ProcessState)
	select {
	case exit.Why = <-over:
		exit.Code = 124 // as of timeout(1)
	default:
	}
	return exit
}

// openOutput opens a file for a task's output. That of an earlier attempt stays above.
func openOutput(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	}
	return f, err
}

// closeOutput removes an empty file: most tasks print no errors.
func closeOutput(f *os.File) {
	if st, err := f.Stat(); err == nil && st.Size() == 0 {
		_ = os.Remove(f.Name()) // it is only empty
	}
	_ = f.Close() // nothing was written through it
}

// failedExit has a shell's exit codes for a command that could not be started.
func failedExit(err error) Exit {
	code := 126
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = 127
	}
	return Exit{Code: code, Why: err.Error()}
}

func describeEnd(state *os.ProcessState) (e Exit) {
	status := state.Sys().(syscall.WaitStatus)
	e.Code = status.ExitStatus()
	if status.Signaled() {
		e.Code = 128 + int(status.Signal())
	}
	return e
}

// watchTask ends the process group when its time is over, with over saying so, or when the runner has ended.
func watchTask(group int, timeout time.Duration, ended, done <-chan struct{}, over chan<- string) {
	var expired <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-done:
		return
	case <-ended:
	case <-expired:
		over <- fmt.Sprintf("timed out after %v", timeout)
	}
	_ = unix.Kill(-group, unix.SIGTERM) // it may just have ended
	select {
	case <-done:
		return
	case <-time.After(Grace):
	}
	_ = unix.Kill(-group, unix.SIGKILL) // it may just have ended
}

// killRest kills the descendants of a task that has ended, which are children of this process by now or by the end of their parents.
func killRest(proc string, group int) {
	_ = unix.Kill(-group, unix.SIGKILL) // usually there are none left
	for {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil); {
		case errors.Is(err, unix.EINTR) || pid > 0:
			continue
		case err != nil: // ECHILD: there are no children
			return
		}
		for _, child := range process.Children(proc, os.Getpid()) {
			_ = unix.Kill(child, unix.SIGKILL) // a child that has ended is reaped in the next round
		}
		_, _ = unix.Wait4(-1, &status, 0, nil)
	}
}
