package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Labels of containers, for other tools. berth itself reads its own records.
const (
	labelName    = "berth.name"
	labelImage   = "berth.image"
	labelRequest = "berth.gpus"
)

// Labels of containerd's restart monitor.
const (
	restartStatus  = "containerd.io/restart.status"
	restartPolicy  = "containerd.io/restart.policy"
	restartLog     = "containerd.io/restart.loguri"
	restartStopped = "containerd.io/restart.explicitly-stopped"
)

// List returns all tasks, the latest first, in the form of package tasks.
func (e *Engine) List(ctx context.Context) ([]tasks.Task, error) {
	ctx = withNamespace(ctx)
	// Containers are listed first: a container that is created in between has no task yet.
	all, err := e.c.ContainerService().List(ctx)
	if err != nil {
		return nil, simplifyError(err)
	}
	running, err := e.c.TaskService().List(ctx, &tasksapi.ListTasksRequest{})
	if err != nil {
		return nil, simplifyError(errgrpc.ToNative(err))
	}
	byID := map[string]*tasktypes.Process{}
	for _, p := range running.Tasks {
		byID[p.ID] = p
	}
	held := e.leasesByContainer()
	list := []tasks.Task{}
	for _, c := range all {
		t, err := e.buildTask(c, byID[c.ID])
		if err != nil {
			return nil, err
		}
		if l, ok := held[c.ID]; ok {
			t.Lease = l.ID
			for _, d := range l.Devices {
				t.Devices = append(t.Devices, d.UUID)
			}
		}
		list = append(list, t)
	}
	slices.SortStableFunc(list, func(a, b tasks.Task) int { return b.Created.Compare(a.Created) })
	return list, nil
}

// leasesByContainer returns the leases by container id; none if the ledger can't be read.
func (e *Engine) leasesByContainer() map[string]ledger.Lease {
	held := map[string]ledger.Lease{}
	node, err := berth.Open(e.Config)
	if err != nil {
		return held
	}
	leases, err := node.Leases()
	if err != nil {
		return held
	}
	for _, l := range leases {
		if l.Owner.Container != "" {
			held[l.Owner.Container] = l
		}
	}
	return held
}

// buildTask combines record and container into a task. p is nil if containerd has no task for it.
func (e *Engine) buildTask(c containers.Container, p *tasktypes.Process) (tasks.Task, error) {
	t := tasks.Task{Record: e.recordOf(c)}
	boot, err := e.store.BootID()
	if err != nil {
		return t, err
	}
	if t.Exit, err = e.store.Exit(c.ID); err != nil {
		return t, err
	}
	lives := p != nil && (p.Status == tasktypes.Status_RUNNING || p.Status == tasktypes.Status_PAUSED || p.Status == tasktypes.Status_PAUSING)
	again := c.Labels[restartStatus] == "running" && c.Labels[restartStopped] != "true"
	switch {
	case lives:
		t.Exit, t.Held = nil, true
		t.Life = e.lifeOf(int(p.Pid), boot, c.ID)
		t.State = tasks.Running
		t.Cgroup = e.cgroupOf(int(p.Pid), t.Cgroup)
	case p != nil && p.Status == tasktypes.Status_STOPPED:
		t.Exit = e.exitOf(t, p)
		t.Status = tasks.Status{State: tasks.Exited, Code: t.Exit.Code, Why: t.Exit.Error}
		n, decided := e.countRestarts(c.ID, *t.Exit)
		if again && (decided || t.Restart.Allows(t.Exit.Code, n)) {
			t.State, t.Held = tasks.Restarting, true
			t.Life = &tasks.Life{Version: tasks.Version, Restarts: n, BootID: boot, Ended: t.Exit}
			t.Exit = nil
		}
	case p != nil, t.Exit == nil && t.BootID == boot && e.store.Lives(t.Maker):
		t.State, t.Held = tasks.Created, true
	case t.Exit == nil && again && t.BootID == boot: // containerd has deleted the task and will create it again
		t.State, t.Held = tasks.Restarting, true
	case t.Exit != nil:
		t.Status = tasks.Status{State: tasks.Exited, Code: t.Exit.Code, Why: t.Exit.Error}
	case t.BootID != boot:
		t.Status = tasks.Status{State: tasks.Lost, Why: "the machine was restarted"}
	default:
		t.Status = tasks.Status{State: tasks.Lost, Why: "containerd no longer has its task"}
	}
	return t, nil
}

// recordOf returns the task's record, or one made from the container's labels if there is none.
func (e *Engine) recordOf(c containers.Container) tasks.Record {
	r, err := e.store.Record(c.ID)
	if err == nil {
		return r
	}
	return tasks.Record{
		Version: tasks.Version, ID: c.ID, Created: c.CreatedAt,
		Name: cmp.Or(c.Labels[labelName], c.ID), Image: cmp.Or(c.Labels[labelImage], c.Image),
		Request: c.Labels[labelRequest], Labels: c.Labels, Detached: true,
	}
}

// countRestarts returns how often a task was restarted, and whether a restart after the end x was
// already recorded. containerd 1.6 doesn't count restarts.
func (e *Engine) countRestarts(id string, x tasks.Exit) (n int, decided bool) {
	l, err := e.store.Life(id)
	if err != nil || l == nil {
		return 0, false
	}
	return l.Restarts, l.Ended != nil && l.Ended.Finished.Equal(x.Finished)
}

// lifeOf returns the life of a container, given its first process.
func (e *Engine) lifeOf(pid int, boot, id string) *tasks.Life {
	l := &tasks.Life{Version: tasks.Version, Init: tasks.Process{PID: pid}, BootID: boot}
	l.Restarts, _ = e.countRestarts(id, tasks.Exit{})
	if start, err := process.Start(e.procPath(), pid); err == nil {
		l.Init.Start = start
		l.Started = time.Now().UTC().Add(-process.Age(start)).Round(time.Second)
	}
	return l
}

func (e *Engine) procPath() string {
	return cmp.Or(e.Config.Host.Proc, "/proc")
}

// cgroupOf returns the task's cgroup as /proc has it: berth-runtime may have created an outer cgroup.
func (e *Engine) cgroupOf(pid int, recorded string) string {
	tree, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		return recorded
	}
	path, err := tree.ProcessPath(e.procPath(), pid)
	if outer, ok := strings.CutSuffix(path, "/container"); ok && err == nil {
		return outer
	}
	return recorded
}

// exitOf returns the end of a task that containerd reports as stopped.
func (e *Engine) exitOf(t tasks.Task, p *tasktypes.Process) *tasks.Exit {
	x := tasks.Exit{Version: tasks.Version, Code: int(p.ExitStatus), Finished: p.ExitedAt.AsTime()}
	if t.Exit != nil && t.Exit.Finished.Equal(x.Finished) { // the record has more fields
		return t.Exit
	}
	return &x
}

// Task returns a task by its id. The error Is tasks.ErrNotFound if there is none.
func (e *Engine) Task(ctx context.Context, id string) (tasks.Task, error) {
	ctx = withNamespace(ctx)
	c, err := e.c.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return tasks.Task{}, fmt.Errorf("task %q: %w", id, tasks.ErrNotFound)
	}
	if err != nil {
		return tasks.Task{}, simplifyError(err)
	}
	p, err := e.getProcess(ctx, id)
	if err != nil {
		return tasks.Task{}, err
	}
	return e.buildTask(c, p)
}

// getProcess returns containerd's task of a container; nil if there is none.
func (e *Engine) getProcess(ctx context.Context, id string) (*tasktypes.Process, error) {
	r, err := e.c.TaskService().Get(ctx, &tasksapi.GetRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, simplifyError(err)
	}
	return r.Process, nil
}

// removeLeftovers removes directories of tasks whose containers were never created, or were removed by
// other tools.
func (e *Engine) removeLeftovers(ctx context.Context) error {
	ids, err := e.store.IDs()
	if err != nil || len(ids) == 0 {
		return err
	}
	all, err := e.c.ContainerService().List(ctx)
	if err != nil {
		return simplifyError(err)
	}
	for _, id := range ids {
		if slices.ContainsFunc(all, func(c containers.Container) bool { return c.ID == id }) {
			continue
		}
		lock, busy := e.store.Lock(id)
		if busy != nil {
			continue // the task is being created
		}
		// The container may have been created since the list was read.
		if _, gone := e.c.ContainerService().Get(ctx, id); errdefs.IsNotFound(gone) {
			err = errors.Join(err, e.removeTaskFiles(context.WithoutCancel(ctx), id))
		}
		err = errors.Join(err, lock.Close())
	}
	return err
}

// walkSnapshots calls visit with the name and the size in bytes of each layer.
func (e *Engine) walkSnapshots(ctx context.Context, visit func(string, int64)) error {
	s := e.c.SnapshotService(snapshotter)
	err := s.Walk(ctx, func(ctx context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			return nil
		}
		u, err := s.Usage(ctx, i.Name)
		if err == nil {
			visit(i.Name, u.Size)
		}
		return nil //nolint:nilerr // the snapshot was removed meanwhile
	})
	if errdefs.IsNotFound(err) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return simplifyError(err)
}
