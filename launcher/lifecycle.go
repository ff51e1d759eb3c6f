package launcher

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Lifecycle has the options about a task's end, its restarts, and what is kept of it.
type Lifecycle struct {
	// Keep keeps what the task has written, and how it ended, until the task is removed. A task
	// whose start fails isn't kept.
	Keep bool
	// Labels are for people and tools; they are stored in the task's record only.
	Labels map[string]string
	// CIDFile gets the task's id. It must not exist.
	CIDFile string
	// StopSignal is a signal's name or number; "" means the image's, or SIGTERM. StopTimeout is the
	// time from the stop signal to SIGKILL: zero means ten seconds, less than zero no SIGKILL.
	StopSignal  string
	StopTimeout time.Duration
	// Timeout ends a task that has run for so long; zero means no limit.
	Timeout time.Duration

	// Detach makes the task a detached one, which a monitor supervises; nil means that this process
	// waits for the task.
	Detach *Detach `json:"-"`
	// Restart is the restart policy of a detached task.
	Restart tasks.Restart
	// LogLimit bounds a detached task's log.
	LogLimit tasks.LogLimit
	// Retention bounds how many tasks that have ended are kept.
	Retention control.Retention
	// Monitor is the monitor's program; "" means that it is found, see MonitorProgram.
	Monitor string
}

// Detach makes Run turn its process into the task's monitor; Run then returns only on errors. The
// caller must have started that process in a session of its own, without a terminal.
type Detach struct {
	// Status gets one line, which control.ParseStatus reads. If its other end is closed before that,
	// the launch is cancelled. After the line, the other end may be closed at any time.
	Status *os.File
	queued atomic.Bool
}

// IsQueued reports whether the task's id was reported because the task waits for devices. From then on
// a closed Status does not cancel the launch. It is safe for concurrent use.
func (d *Detach) IsQueued() bool { return d.queued.Load() }

func (o Options) checkLifecycle() error {
	switch {
	case o.Timeout < 0:
		return errors.New("a timeout can't be negative")
	case o.Restart.Policy != "" && o.Detach == nil:
		return fmt.Errorf("restart policy %s: only a detached task (-d) is started again", o.Restart)
	case o.Restart.Policy != "" && !o.Keep:
		return fmt.Errorf("restart policy %s: a task that is removed at its end can't be started again", o.Restart)
	}
	return nil
}

func (o Options) checkStopSignal() error {
	if o.StopSignal == "" {
		return nil
	}
	_, err := supervise.ParseSignal(o.StopSignal)
	return err
}

func (o Options) checkCIDFile() error {
	if o.CIDFile == "" {
		return nil
	}
	if _, err := os.Lstat(o.CIDFile); err == nil {
		return fmt.Errorf("--cidfile %s: the file exists and may be of another task; remove it, or name another file", o.CIDFile)
	}
	return nil
}

// writeCIDFile writes the task's id to --cidfile.
func (t *task) writeCIDFile() error {
	if t.o.CIDFile == "" {
		return nil
	}
	f, err := os.OpenFile(t.o.CIDFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("--cidfile: %w", err)
	}
	_, err = f.WriteString(t.paths.ID)
	return errors.Join(err, f.Close())
}
