package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// makePipes creates the FIFOs between a detached task and its monitor. They belong to the
// command's user, who may open them again, as shells do with /dev/stdout.
func (t *task) makePipes() error {
	names := []string{"stdout", "stderr"}
	switch {
	case t.o.Terminal:
		return nil
	case t.o.Interactive:
		names = append(names, "stdin")
	}
	for _, name := range names {
		path := t.paths.In(name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return &os.PathError{Op: "make pipe", Path: path, Err: err}
		}
		if err := os.Lchown(path, int(t.rec.UID), int(t.rec.GID)); err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
	}
	return nil
}

// announceQueued is called when a detached task begins to wait for devices. It reports the task's id on
// Detach.Status, so that berth run can end, and leaves berth run's standard error, directory and cgroups.
// If leaving fails, nothing is reported, and berth run waits until the task has started.
func (t *task) announceQueued() {
	if t.o.Detach == nil || t.rec.Queued {
		return
	}
	t.rec.Queued = true
	err := t.o.taskStore().WriteRecord(t.rec)
	if err == nil {
		err = t.leaveStarter()
	}
	if err != nil {
		t.o.Log.Warn("detach while waiting", "error", err)
		t.rec.Queued = false
		return
	}
	t.o.Detach.queued.Store(true)
	// The last step: if berth run is the last process of a service, the service ends when berth run
	// does. A berth run that was killed in the meantime is no error: the task goes on waiting.
	_, _ = fmt.Fprintln(t.o.Detach.Status, "queued "+t.rec.ID)
	_ = t.o.Detach.Status.Close()
}

// leaveStarter leaves the directory, the standard error and the cgroups that this process was started
// with. A user without root can't leave the cgroups before there is a lease.
func (t *task) leaveStarter() error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	// The thread with a mount namespace of its own has a directory of its own, too.
	if err := errors.Join(os.Chdir("/"), inBackground(func() error { return os.Chdir("/") })()); err != nil {
		return err
	}
	if t.o.Place == nil {
		if err := t.h.Cgroups.EnterAll(t.rec.MonitorsCgroup()); err != nil {
			return err
		}
	}
	return unix.Dup3(int(null.Fd()), 2, 0)
}

// setFailedExit records err as the task's end if announceQueued has reported the task's id. A task
// whose id was not reported leaves no record.
func (t *task) setFailedExit(err error) {
	if err != nil && t.rec.Queued {
		exit := supervise.NewFailedExit(err)
		t.exit = &exit
	}
}

// becomeMonitor executes the monitor in this process. The pid stays the same, so this process
// remains the lease's owner, and so does this thread's mount namespace, in which the root is
// mounted. It returns only with an error.
func (t *task) becomeMonitor(ctx context.Context, s *supervise.Signals, more ...inherited) error {
	program := t.o.Monitor
	if program == "" {
		var err error
		if program, err = control.MonitorProgram(); err != nil {
			return err
		}
	}
	args := []string{filepath.Base(program), "--data", t.o.Data, "--state", t.o.State, "--config", t.o.Config}
	if err := process.CloseDescriptorsOnExec(); err != nil {
		return err
	}
	more = append(more, inherited{"--lock", []*os.File{t.lock}})
	if !t.rec.Queued {
		more = append(more, inherited{"--status", []*os.File{t.o.Detach.Status}})
	}
	for _, i := range more {
		var fds []string
		for _, f := range i.files {
			fd, err := keepThroughExec(f)
			if err != nil {
				return err
			}
			fds = append(fds, fd)
		}
		args = append(args, i.flag, strings.Join(fds, ","))
	}
	if err := s.Hold(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := syscall.Exec(program, append(args, t.paths.ID), control.MonitorEnvironment())
	return &os.PathError{Op: "execute", Path: program, Err: err}
}

// inherited are files that the monitor inherits; the value of flag lists their descriptors.
type inherited struct {
	flag  string
	files []*os.File
}

// keepThroughExec clears a file's close-on-exec flag and returns its descriptor.
func keepThroughExec(f *os.File) (string, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return "", err
	}
	var number string
	var failed error
	err = raw.Control(func(fd uintptr) {
		number = fmt.Sprint(fd)
		_, failed = unix.FcntlInt(fd, unix.F_SETFD, 0)
	})
	return number, errors.Join(err, failed)
}
