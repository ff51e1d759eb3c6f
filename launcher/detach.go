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

// makePipes makes those by which a detached task and its monitor speak. They are the
// command's own: it may open them anew, as shells do with /dev/stdout.
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

// becomeMonitor has this process become the task's monitor: it keeps the process's id, so the
// lease is still its maker's, and this thread's mount namespace, in which the root is
// mounted. It returns only with an error.
func (t *task) becomeMonitor(ctx context.Context, s *supervise.Signals, more ...inherited) error {
	program := t.o.Monitor
	if program == "" {
		var err error
		if program, err = control.MonitorProgram(); err != nil {
			return err
		}
	}
	args := []string{filepath.Base(program), "--data", t.o.Data, "--state", t.o.State}
	if err := process.KeepDescriptors(); err != nil {
		return err
	}
	for _, i := range append(more, inherited{"--lock", []*os.File{t.lock}}, inherited{"--status", []*os.File{t.o.Detach.Status}}) {
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

// inherited are files that a monitor gets by the numbers behind a flag.
type inherited struct {
	flag  string
	files []*os.File
}

// keepThroughExec lets a file live through exec, and returns its number there.
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
