package monitor

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// waitRuntime waits for a runtime; call is create, start, delete or state. A request to end kills a
// runtime that creates or starts a container. After startTimeout the runtime is also killed if the container's init has died before its
// start, or if a process of the task is stopped (by SIGSTOP from another rank of the gang or from a process of the same user).
func (m *monitor) waitRuntime(cmd *exec.Cmd, call string) error {
	pid := cmd.Process.Pid
	defer func() { _ = cmd.Process.Release() }() // only a handle
	end := m.reaper.await(pid)
	var asked chan string
	var initDied <-chan struct{}
	var look <-chan time.Time
	if call == "create" || call == "start" {
		asked = m.endRequests
		ticker := time.NewTicker(stoppedCheckInterval)
		defer ticker.Stop()
		look = ticker.C
	}
	if call == "start" {
		initDied = m.initEnd.Done
	}
	var tooLong <-chan time.Time
	stopped := 0
	for {
		select {
		case <-end.Done:
			switch {
			case end.Status == 0:
				return nil
			case stopped >= maxStoppedChecks:
				return errStopped
			}
			return exitError(end.Status)
		case <-initDied:
			initDied, tooLong = nil, time.After(startTimeout)
			continue
		case <-look:
			if !m.hasStoppedProcess() {
				continue
			}
			if stopped++; stopped < maxStoppedChecks {
				continue
			}
		case reason := <-asked:
			m.ending, m.reason = true, reason
		case <-tooLong:
		}
		initDied, look = nil, nil
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

// startTimeout is how long a runtime may take to start a container whose init has died. A short
// command may have ended by itself; if init never executed the command, crun waits for ever.
const startTimeout = 3 * time.Second

// hasStoppedProcess reports whether a process of the task is stopped, the runtime's among them.
func (m *monitor) hasStoppedProcess() bool {
	pids, _ := m.cgroups.PIDs(m.rec.Cgroup) // those that can be read
	return slices.ContainsFunc(pids, func(pid int) bool { return process.Stopped(cmp.Or(m.Store.Proc, "/proc"), pid) })
}

// stoppedCheckInterval is how often waitRuntime checks whether a process is stopped. maxStoppedChecks is how many checks may
// find one before the runtime is killed, in a row or not: a rank can stop another one again and again.
const (
	stoppedCheckInterval = 200 * time.Millisecond
	maxStoppedChecks     = int(startTimeout / stoppedCheckInterval)
)

var errStopped = errors.New("another process stopped it before it had started")

// callRuntime runs the runtime to its end, and returns its output.
func (m *monitor) callRuntime(words ...string) (string, error) {
	cmd := m.runtime.Command(words...)
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	cmd, err = m.startRuntime(cmd, (*exec.Cmd).Start)
	w.Close()
	if err != nil {
		return "", err
	}
	err = m.waitRuntime(cmd, words[0])
	return readOutput(r), err
}

// startRuntime starts a runtime, in the mount namespace that has the task's root.
func (m *monitor) startRuntime(cmd *exec.Cmd, start func(*exec.Cmd) error) (started *exec.Cmd, err error) {
	m.onRootThread(func() {
		program := m.program
		if program == (ociruntime.Program{}) {
			program = ociruntime.Seal(cmd.Path)
			defer program.Close()
		}
		started, err = program.Start(cmd, start)
	})
	return started, err
}

// maxOutput bounds a runtime's output that is kept, in bytes. A pipe holds that much.
const maxOutput = 16 << 10

// readOutput reads the bytes that are in a pipe. It doesn't wait for other writers.
func readOutput(r *os.File) string {
	raw, err := r.SyscallConn()
	if err != nil {
		return ""
	}
	buf := make([]byte, maxOutput)
	n := 0
	err = raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), buf)
		return true
	})
	if err != nil || n < 0 {
		return ""
	}
	return strings.Join(strings.Fields(string(bytes.TrimSpace(buf[:n]))), " ")
}
