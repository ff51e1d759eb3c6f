package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// cgroupParent is the cgroup below which a task has its own, unless Options.Parent
// says another.
const cgroupParent = "/berth"

// task is one container from its directory to its end.
type task struct {
	o     Options
	h     *host
	plan  plan
	place place
	lock  *os.File
	lease *ledger.Lease
	rec   tasks.Record // once it was written
	// ended is how it did; nil before, and if it has never started.
	ended *tasks.Exit
	// programs waits for those that come with the devices.
	programs func() (map[string]string, error)
	// ground waits for prepareGround; nil before it was begun.
	ground func() error
	// program is the runtime, once ground was waited for.
	program ociruntime.Program

	command supervise.Command // the runtime's run; nothing before it was started
	// late: it was asked to end because its time was over.
	late bool
	oom  *cgroup.OOMWatch // nil where it isn't watched
}

// place is where the parts of a task are. It follows from the id alone, so that
// who finds the directory of a dead launcher knows everything.
type place struct {
	id, dir, state string
}

func placeOf(o Options, id string) place {
	return place{id: id, dir: filepath.Join(o.Data, "tasks", id), state: filepath.Join(o.State, "runtime")}
}

func (p place) parentLink() string     { return p.in("parent") }
func (p place) in(name string) string  { return filepath.Join(p.dir, name) }
func (p place) bundle() string         { return p.in("bundle") }
func (p place) pidFile() string        { return p.in("bundle/pid") }
func (p place) log() string            { return p.in("bundle/log") }
func (p place) runtimeLink() string    { return p.in("runtime") }
func (p place) root(rt string) string  { return filepath.Join(p.state, filepath.Base(rt)) }
func (p place) known(rt string) string { return filepath.Join(p.root(rt), p.id) }

// newTask makes the task's directory and holds its lock. The directory appears
// under its name only when the lock is held, so no sweep takes it for a leftover.
func newTask(o Options, h *host, p plan) (t *task, err error) {
	t = &task{o: o, h: h, plan: p, place: placeOf(o, p.id)}
	all := filepath.Dir(t.place.dir)
	if err := os.MkdirAll(all, 0o700); err != nil {
		return nil, fmt.Errorf("make task directory: %w", err)
	}
	gate, err := lock.Open(context.Background(), all, lock.Shared)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	for _, name := range []string{"", "rootfs", "upper", "work", "files", "bundle"} {
		if err := os.Mkdir(t.place.in(name), 0o700); err != nil {
			return nil, fmt.Errorf("make task directory: %w", err)
		}
	}
	// What the root directory of the container looks like comes from here.
	if err := os.Chmod(t.place.in("upper"), 0o755); err != nil {
		return nil, fmt.Errorf("make task directory: %w", err)
	}
	for link, target := range map[string]string{t.place.runtimeLink(): h.runtime, t.place.parentLink(): or(o.Parent, cgroupParent)} {
		if err := os.Symlink(target, link); err != nil {
			return nil, fmt.Errorf("make task directory: %w", err)
		}
	}
	if t.lock, err = lock.TryOpen(t.place.dir, lock.Exclusive); err != nil {
		return nil, err
	}
	if p.name != p.id && p.member == nil { // a rank is found by its gang's name
		if err := o.store().Claim(p.name, p.id); err != nil {
			return nil, errors.Join(err, os.RemoveAll(t.place.dir), t.lock.Close())
		}
	}
	return t, nil
}

// end gives everything back. It is called once, whatever happened before. A task
// that can't be ended keeps its lease and its directory: when its processes have
// ended, the lease is found dead, and the next sweep does the rest.
func (t *task) end(ctx context.Context) error {
	if t.ground != nil {
		_ = t.ground() // whatever it made is removed
		t.program.Close()
	}
	_ = t.oom.Close() // only read from
	if err := t.place.removeContainer(ctx, t.h); err != nil {
		if t.lease != nil {
			err = fmt.Errorf("lease %s stays until the task's processes have ended: %w", t.lease.ID, err)
		}
		return errors.Join(err, t.lock.Close())
	}
	released := begin(func() error { return t.release(ctx) })
	var err error
	if t.o.Keep && t.ended != nil {
		if err = released(); err != nil {
			t.ended.Error = err.Error()
		}
		err = errors.Join(err, t.o.store().WriteExit(t.place.id, *t.ended))
	} else {
		err = errors.Join(t.remove(), released())
	}
	return errors.Join(err, t.lock.Close())
}

// remove removes what is known of the task. A name takes longer than all the rest.
func (t *task) remove() error {
	if t.plan.name != t.place.id { // which a record says, if it could be written
		return errors.Join(t.o.store().Remove(t.place.id), t.o.store().Unclaim(t.plan.name, t.place.id))
	}
	if err := tasks.RemoveDir(t.place.dir); err != nil {
		return fmt.Errorf("remove task: %w", err)
	}
	return nil
}

// release gives the devices back; no process of the task is left.
func (t *task) release(ctx context.Context) error {
	if t.lease == nil {
		return nil
	}
	if err := t.o.Berths.Release(ctx, *t.lease); err != nil {
		return fmt.Errorf("release lease %s: %w", t.lease.ID, err)
	}
	return nil
}

// cgroup is where the task's processes are. A directory without the link is one
// that its launcher had only begun to make: it has no processes.
func (p place) cgroup() string {
	parent, err := os.Readlink(p.parentLink())
	if err != nil {
		parent = cgroupParent
	}
	return filepath.Join(parent, p.id)
}

// removeContainer ends the container if it still runs, and removes what the
// runtime knows of it and its cgroups.
func (p place) removeContainer(ctx context.Context, h *host) error {
	var err error
	if rt, e := os.Readlink(p.runtimeLink()); e == nil {
		if _, e := os.Lstat(p.known(rt)); e == nil {
			err = p.forceDelete(ctx, rt)
		}
	}
	return errors.Join(err, h.Cgroups.RemoveAll(p.cgroup()))
}

func (p place) forceDelete(ctx context.Context, rt string) error {
	cmd := exec.CommandContext(ctx, rt, "--root", p.root(rt), "delete", "--force", p.id)
	cmd.Env = []string{"PATH=" + programs}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("delete container %s: %w: %s", p.id, err, oneLine(string(out)))
	}
	return nil
}
