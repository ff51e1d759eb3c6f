package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Lasting says how long a task lasts, and what is known of it afterwards.
type Lasting struct {
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
	// Monitor is the monitor's program; "" means that it is found, see MonitorProgram.
	Monitor string
}

// Detach is how a launch goes on that becomes a task's monitor: Run doesn't return then.
// The caller has made a process for it that nothing ties to a terminal.
type Detach struct {
	// Status gets one line, which ParseStatus reads. That its other end is closed before
	// says that nobody wants the task any more.
	Status *os.File
}

func (o Options) checkLasting() error {
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

// writeCID tells the task's id to who waits for the file.
func (t *task) writeCID() error {
	if t.o.CIDFile == "" {
		return nil
	}
	f, err := os.OpenFile(t.o.CIDFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("--cidfile: %w", err)
	}
	_, err = f.WriteString(t.place.ID)
	return errors.Join(err, f.Close())
}

// store is where records of tasks are.
func (o Options) store() tasks.Store { return tasks.Store{Data: o.Data, State: o.State} }

// describeTask begins the task's record with what is known before a lease is. It is
// there before the container can be.
func (t *task) describeTask(img *image.Image, layers []string, spec *specs.Spec) error {
	if err := t.recall(img, layers, spec); err != nil {
		return err
	}
	return t.o.store().WriteRecord(t.rec)
}

// recall makes the task's record.
func (t *task) recall(img *image.Image, layers []string, spec *specs.Spec) error {
	store := t.o.store()
	self, err := store.Self()
	if err != nil {
		return err
	}
	boot, err := store.BootID()
	if err != nil {
		return err
	}
	sig, err := t.stopSignal(img)
	if err != nil {
		return err
	}
	user := spec.Process.User
	t.rec = tasks.Record{
		ID: t.place.ID, Name: t.plan.name, Image: t.o.Image, Digest: img.Digest, Command: spec.Process.Args,
		Created: time.Now().UTC(), BootID: boot, Maker: self,
		User: os.Getuid(), UID: user.UID, GID: user.GID,
		Detached: t.o.Detach != nil, Remove: !t.o.Keep, Terminal: t.o.Terminal, Interactive: t.o.Interactive,
		Labels: img.Config.Borne(t.o.Labels), Annotations: t.o.Annotations,
		Runtime: t.h.runtime, RuntimeRoot: t.place.RuntimeRoot(t.h.runtime), Cgroup: t.place.Cgroup(), CgroupMount: t.o.Cgroup,
		Restart: t.o.Restart, StopSignal: int(sig), Grace: t.grace(), Timeout: tasks.Duration(t.o.Timeout), Log: t.o.LogLimit,
	}
	t.rec.Member = t.plan.member
	if t.o.Restart.Policy != "" || t.plan.gang != nil && t.plan.gang.o.Restart.Policy != "" {
		t.rec.Layers, t.rec.Writable = layers, t.o.ReadWrite
	}
	return nil
}

// recallLease notes the lease in the record.
func (t *task) recallLease(l ledger.Lease) {
	t.rec.Request, t.rec.Lease = l.Request, l.ID
	t.rec.Shared = l.Owner.Container != t.place.ID
	for _, d := range l.Devices {
		t.rec.Devices = append(t.rec.Devices, d.UUID)
	}
}

func (t *task) stopSignal(img *image.Image) (syscall.Signal, error) {
	name := or(t.o.StopSignal, img.Config.StopSignal)
	if name == "" {
		return unix.SIGTERM, nil
	}
	return supervise.ParseSignal(name)
}

func (t *task) grace() tasks.Duration {
	if t.o.StopTimeout == 0 {
		return tasks.Duration(supervise.DefaultGrace)
	}
	return tasks.Duration(t.o.StopTimeout)
}

// describeLease adds the lease to the record.
func (t *task) describeLease() error {
	if t.lease == nil {
		return nil
	}
	t.recallLease(*t.lease)
	// File systems that are careful with files which are replaced flush them to the
	// disk; a task without a record is one that is being made.
	if err := os.Remove(t.place.In("task.json")); err != nil {
		return fmt.Errorf("record task %s: %w", t.place.ID, err)
	}
	return t.o.store().WriteRecord(t.rec)
}

// pipes makes those by which a detached task and its monitor speak. They are the
// command's own: it may open them anew, as shells do with /dev/stdout.
func (t *task) pipes() error {
	names := []string{"stdout", "stderr"}
	switch {
	case t.o.Terminal:
		return nil
	case t.o.Interactive:
		names = append(names, "stdin")
	}
	for _, name := range names {
		path := t.place.In(name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return &os.PathError{Op: "make pipe", Path: path, Err: err}
		}
		if err := os.Lchown(path, int(t.rec.UID), int(t.rec.GID)); err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
	}
	return nil
}

// become has this process become the task's monitor: it keeps the process's id, so the
// lease is still its maker's, and this thread's mount namespace, in which the root is
// mounted. It returns only with an error.
func (t *task) become(ctx context.Context, s *supervise.Signals, more ...inherited) error {
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
			fd, err := keep(f)
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
	err := syscall.Exec(program, append(args, t.place.ID), control.MonitorEnvironment())
	return &os.PathError{Op: "execute", Path: program, Err: err}
}

// inherited are files that a monitor gets by the numbers behind a flag.
type inherited struct {
	flag  string
	files []*os.File
}

// keep lets a file live through exec, and returns its number there.
func keep(f *os.File) (string, error) {
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
