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

// Lifecycle says how long a task lasts, and what is known of it afterwards.
type Lifecycle struct {
	// Keep leaves what the task has written, and how it ended, until somebody removes
	// it. A task whose start fails isn't kept.
	Keep bool
	// Labels are for people and tools; they go into the task's record and nowhere else.
	Labels map[string]string
	// CIDFile gets the task's id. It must not exist.
	CIDFile string
	// StopSignal is a signal's name or number, "" the image's or SIGTERM, and
	// StopTimeout how long the task then has; zero means ten seconds, less than zero
	// for ever.
	StopSignal  string
	StopTimeout time.Duration
	// Timeout ends a task that has run for so long; zero means no limit.
	Timeout time.Duration

	// Detach has the task run on by itself, watched over by a monitor; nil means that
	// this process waits for it.
	Detach *Detach `json:"-"`
	// Restart says when a detached task is started again.
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
		return fmt.Errorf("restart policy %s: only a detached task is started again", o.Restart)
	case o.Restart.Policy != "" && !o.Keep:
		return fmt.Errorf("restart policy %s: a task that is removed at its end can't be started again", o.Restart)
	}
	return nil
}

func (o Options) checkStop() error {
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
		return fmt.Errorf("--cidfile %s: it exists, and another task may count on it; remove it or name another", o.CIDFile)
	}
	return nil
}

// writeCID writes the task's id to --cidfile.
func (t *task) writeCID() error {
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
