package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

// Child is a [gpu.Source] that reads in another process.
type Child struct {
	// Path of the program and its arguments, the program's name not included. It
	// must call [Serve] on its standard output.
	Path string
	Args []string
	// Env of the child; nil is this process's own.
	Env []string
	// Cgroup is a directory of a cgroup v2 tree, in which the child starts; "" is this process's own.
	Cgroup string
	// Timeout for everything; 0 means 30 seconds.
	Timeout time.Duration
}

// Read runs the child. After the timeout, GPUs that were reported are returned and the others are
// marked as lost; if not even their number is known, that is an error. The end of ctx is an error. In
// each case the child is killed but not waited for, because a thread that hangs in the kernel can't be
// killed.
func (c Child) Read(ctx context.Context) (gpu.Report, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	run, err := c.startReading()
	if err != nil {
		return gpu.Report{}, err
	}
	return run.readReport(ctx, timeout)
}

// childRun is one running child.
type childRun struct {
	path     string
	cmd      *exec.Cmd
	messages chan Message
	ended    chan error // gets one value, the child's error, when no more messages come; nil after a normal end
	quit     chan struct{}
	stderr   *outputHead
}

func (c Child) startReading() (*childRun, error) {
	r := &childRun{
		path: c.Path, cmd: exec.Command(c.Path, c.Args...), stderr: &outputHead{},
		messages: make(chan Message), ended: make(chan error, 1), quit: make(chan struct{}),
	}
	r.cmd.Env, r.cmd.Stderr = c.Env, r.stderr
	r.cmd.WaitDelay = time.Second // for processes that have inherited the child's standard error
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", c.Path, err)
	}
	if err := c.start(r.cmd); err != nil {
		return nil, err
	}
	go r.forwardMessages(stdout)
	return r, nil
}

// start starts the command in the child's cgroup.
func (c Child) start(cmd *exec.Cmd) error {
	if c.Cgroup != "" {
		dir, err := os.OpenFile(c.Cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("run %s: %w", c.Path, err)
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", c.Path, err)
	}
	return nil
}

// forwardMessages hands messages on until the child's output ends, then reaps the child. It keeps
// running after Read has returned if the child can't be killed.
func (r *childRun) forwardMessages(stdout io.Reader) {
	err := r.decodeMessages(stdout)
	if err != nil { // the child may be blocked in a write to a pipe that is no longer read
		r.ended <- errors.Join(err, r.killChild(), r.cmd.Wait())
		return
	}
	r.ended <- r.cmd.Wait()
}

func (r *childRun) decodeMessages(stdout io.Reader) error {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("read output: %w", err)
		}
		select {
		case r.messages <- m:
		case <-r.quit:
			return nil
		}
	}
	return lines.Err()
}

func (r *childRun) readReport(ctx context.Context, timeout time.Duration) (gpu.Report, error) {
	defer close(r.quit)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var c collector
	for !c.done {
		select {
		case m := <-r.messages:
			if err := c.addMessage(m); err != nil {
				return gpu.Report{}, errors.Join(err, r.killChild())
			}
		case err := <-r.ended:
			return c.closeReport(r.exitReason(err))
		case <-timer.C:
			return r.finishReport(c, "no answer within "+timeout.String())
		case <-ctx.Done():
			return gpu.Report{}, errors.Join(fmt.Errorf("read node: %w", ctx.Err()), r.killChild())
		}
	}
	return r.finishReport(c, "not reported")
}

func (r *childRun) finishReport(c collector, missing string) (gpu.Report, error) {
	if err := r.killChild(); err != nil {
		return gpu.Report{}, err
	}
	return c.closeReport(missing)
}

// killChild kills the child. It is no error if the child has ended.
func (r *childRun) killChild() error {
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", r.path, err)
	}
	return nil
}

// exitReason returns why the child ended before its last message, with its standard error.
func (r *childRun) exitReason(err error) string {
	text := r.path + " ended too early"
	if err != nil {
		text += ": " + strings.ReplaceAll(err.Error(), "\n", ": ")
	}
	if said := r.stderr.String(); said != "" {
		text += ": " + said
	}
	return text
}

// outputHead keeps the beginning of what is written to it.
type outputHead struct {
	mu    sync.Mutex
	start []byte
}

func (w *outputHead) Write(p []byte) (int, error) {
	const keep = 512
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start = append(w.start, p[:min(len(p), keep-len(w.start))]...)
	return len(p), nil
}

// String returns the text in one line. For the dump that Go's runtime writes when the library
// crashes, this is the beginning of the dump, which has the signal.
func (w *outputHead) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, _, _ := strings.Cut(string(w.start), "\ngoroutine ")
	text, _, _ = strings.Cut(text, "\nPC=")
	return strings.Join(strings.Fields(text), " ")
}
