package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/projectquota"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// task is a task of this process, from the creation of its directory to its end.
type task struct {
	o     Options
	h     *host
	plan  plan
	paths tasks.Paths
	lock  *os.File
	lease *ledger.Lease
	rec   tasks.Record // set by buildRecord
	// exit is how the task ended; nil while it runs, and if it has never started.
	exit *tasks.Exit
	// programs waits for the list of programs that the lease brings (DeviceSource.Programs).
	programs func() (map[string]string, error)
	// waitPrepared waits for prepareRuntime; nil before that was called.
	waitPrepared func() error
	// program is the runtime; it is set once waitPrepared has returned.
	program ociruntime.Program

	command supervise.Command // the call of the runtime, zero before it
	// timedOut means that the task was stopped by its timeout.
	timedOut bool
	oom      *cgroup.OOMWatch // nil without a watch
}

// newTask creates and locks the task's directory, and claims its name. It holds the shared lock of
// the directory above until the task's own lock is taken, so that no sweep removes the directory.
func newTask(o Options, h *host, p plan) (t *task, err error) {
	t = &task{o: o, h: h, plan: p, paths: o.taskStore().Paths(p.id)}
	all := filepath.Dir(t.paths.Dir)
	if err := os.MkdirAll(all, 0o700); err != nil {
		return nil, fmt.Errorf("make task directory: %w", err)
	}
	gate, err := lock.Open(context.Background(), all, lock.Shared)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	for _, name := range []string{"", "rootfs", "upper", "work", "files", "bundle"} {
		if err := os.Mkdir(t.paths.In(name), 0o700); err != nil {
			return nil, fmt.Errorf("make task directory: %w", err)
		}
	}
	// The container's root directory gets the mode of the upper directory.
	if err := os.Chmod(t.paths.In("upper"), 0o755); err != nil {
		return nil, fmt.Errorf("make task directory: %w", err)
	}
	if o.StorageSize > 0 {
		if err := projectquota.Limit(o.StorageSize, t.paths.In("upper"), t.paths.In("work"), t.paths.In("files")); err != nil {
			return nil, errors.Join(fmt.Errorf("--storage-opt size: %w", err), tasks.RemoveDir(t.paths.Dir))
		}
	}
	for link, target := range map[string]string{t.paths.RuntimeLink(): h.runtime, t.paths.ParentLink(): cmp.Or(o.Parent, tasks.CgroupParent)} {
		if err := os.Symlink(target, link); err != nil {
			return nil, fmt.Errorf("make task directory: %w", err)
		}
	}
	if t.lock, err = lock.TryOpen(t.paths.Dir, lock.Exclusive); err != nil {
		return nil, err
	}
	if p.name != p.id && p.member == nil { // ranks are found by the gang's name
		if err := o.taskStore().ClaimName(p.name, p.id); err != nil {
			return nil, errors.Join(err, os.RemoveAll(t.paths.Dir), t.lock.Close())
		}
	}
	return t, nil
}

// cleanUp ends and removes everything of the task except the record of a task that is kept. It is
// called once, at any stage. A task whose processes can't be killed keeps its lease and directory:
// once the processes have ended, the lease is reaped, and the next sweep removes the directory.
func (t *task) cleanUp(ctx context.Context) error {
	if t.waitPrepared != nil {
		_ = t.waitPrepared() // what it has created is removed below
		t.program.Close()
	}
	_ = t.oom.Close() // it is only read
	if err := control.RemoveContainer(ctx, t.paths, t.h.Cgroups); err != nil {
		if t.lease != nil {
			err = fmt.Errorf("lease %s stays until the task's processes have ended: %w", t.lease.ID, err)
		}
		return errors.Join(err, t.lock.Close())
	}
	released := inBackground(func() error { return t.releaseLease(ctx) })
	var err error
	if t.o.Keep && t.exit != nil {
		if err = released(); err != nil {
			t.exit.Error = err.Error()
		}
		err = errors.Join(err, t.o.taskStore().WriteExit(t.paths.ID, *t.exit))
	} else {
		err = errors.Join(t.removeRecord(), released())
	}
	return errors.Join(err, t.lock.Close())
}

// removeRecord removes the task's directory, state and name. For a task without a name it skips the
// lock of the names, which takes longer than the removal itself.
func (t *task) removeRecord() error {
	if t.plan.name != t.paths.ID {
		return t.o.taskStore().RemoveNamed(t.paths.ID, t.plan.name)
	}
	if err := errors.Join(t.o.taskStore().RemoveState(t.paths.ID), tasks.RemoveDir(t.paths.Dir)); err != nil {
		return fmt.Errorf("remove task: %w", err)
	}
	return nil
}

// releaseLease releases the lease. It is called when no process of the task is left.
func (t *task) releaseLease(ctx context.Context) error {
	if t.lease == nil {
		return nil
	}
	if err := t.o.Devices.Release(ctx, *t.lease); err != nil {
		return fmt.Errorf("release lease %s: %w", t.lease.ID, err)
	}
	return nil
}
