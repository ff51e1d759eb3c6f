package launcher

import (
	"cmp"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// taskStore returns the store of tasks' records.
func (o Options) taskStore() tasks.Store {
	return tasks.Store{Data: o.Data, State: o.State, Config: o.Config, Inspect: o.Inspect}
}

// writeRecord writes the task's record, without a lease, before the container is created.
func (t *task) writeRecord(img *image.Image, layers []string, spec *specs.Spec) error {
	if err := t.buildRecord(img, layers, spec); err != nil {
		return err
	}
	return t.o.taskStore().WriteRecord(t.rec)
}

// buildRecord sets t.rec.
func (t *task) buildRecord(img *image.Image, layers []string, spec *specs.Spec) error {
	store := t.o.taskStore()
	self, err := store.Self()
	if err != nil {
		return err
	}
	boot, err := store.BootID()
	if err != nil {
		return err
	}
	sig, err := t.o.chooseStopSignal(img.Config)
	if err != nil {
		return err
	}
	user := spec.Process.User
	t.rec = tasks.Record{
		ID: t.paths.ID, Name: t.plan.name, Image: t.o.Image, Digest: img.Digest, Command: spec.Process.Args,
		Created: time.Now().UTC(), BootID: boot, Maker: self,
		User: userns.OuterUID(), UID: user.UID, GID: user.GID,
		Detached: t.o.Detach != nil, Remove: !t.o.Keep, Terminal: t.o.Terminal, Interactive: t.o.Interactive,
		Labels: img.Config.TaskLabels(t.o.Labels), Annotations: t.o.Annotations,
		Runtime: t.h.runtime, RuntimeRoot: t.paths.RuntimeRoot(t.h.runtime), Cgroup: t.paths.Cgroup(), CgroupMount: t.o.Cgroup,
		Restart: t.o.Restart, StopSignal: int(cmp.Or(sig, unix.SIGTERM)), Grace: tasks.Duration(cmp.Or(t.o.StopTimeout, supervise.DefaultGrace)), Timeout: tasks.Duration(t.o.Timeout), Log: t.o.LogLimit,
	}
	t.rec.Member = t.plan.member
	if t.o.Restart.Policy != "" || t.plan.gang != nil && t.plan.gang.o.Restart.Policy != "" {
		t.rec.Layers, t.rec.Writable = layers, t.o.ReadWrite
	}
	return nil
}

// addLeaseToRecord sets the record's fields about the lease.
func (t *task) addLeaseToRecord(l ledger.Lease) {
	t.rec.Request, t.rec.Lease = l.Request, l.ID
	t.rec.Shared = l.Owner.Container != t.paths.ID
	for _, d := range l.Devices {
		t.rec.Devices = append(t.rec.Devices, d.UUID)
	}
}

// chooseStopSignal returns the stop signal of the options, or else the image's; 0 means SIGTERM.
func (o Options) chooseStopSignal(c image.Config) (syscall.Signal, error) {
	name := cmp.Or(o.StopSignal, c.StopSignal)
	if name == "" {
		return 0, nil
	}
	return supervise.ParseSignal(name)
}

// rewriteRecordWithLease adds the lease to the record and writes it.
func (t *task) rewriteRecordWithLease() error {
	switch {
	case t.lease != nil:
		t.addLeaseToRecord(*t.lease)
	case t.o.Place == nil:
		return nil
	}
	if t.rec.Queued { // the task's id was reported, so the record must exist at every moment
		return t.o.taskStore().WriteRecord(t.rec)
	}
	// Some file systems flush a file that a rename replaces (ext4's auto_da_alloc), so the old record
	// is removed first. A task without a record counts as one that is being launched.
	if err := os.Remove(t.paths.In("task.json")); err != nil {
		return fmt.Errorf("record task %s: %w", t.paths.ID, err)
	}
	return t.o.taskStore().WriteRecord(t.rec)
}
