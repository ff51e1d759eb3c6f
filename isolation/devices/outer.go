package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// outerName is the name of an outer cgroup's program, as bpftool shows it.
const outerName = "berth_outer"

// ErrInUse means that a cgroup can't be changed or removed because processes run in it. It also Is
// unix.EBUSY.
var ErrInUse = fmt.Errorf("processes live in it: %w", unix.EBUSY)

// CreateOuterCgroup creates an outer cgroup at path with these rules and the defaults of all runtimes. The
// runtime then creates the container's cgroup below it, so linux.cgroupsPath must name a child. What
// the container does to its own cgroup's rules can only narrow what the outer one allows.
//
// After a nil error the rules are in force, whether CreateOuterCgroup has set them or found them. After an
// error, or if the caller is killed, the cgroup must not be used; the next CreateOuterCgroup of this path
// completes or replaces it. Cgroups that earlier containers left below it are removed. If processes
// run in it under other rules, the error is ErrInUse and nothing changes.
//
// Each container needs a path of its own. With a reused path, a late [RemoveOuterCgroup] for the previous
// container could remove the cgroup before the runtime starts, and the runtime would create it again
// without rules.
//
// The rules can be removed by a process that has CAP_SYS_ADMIN and reaches the directory of the
// outer cgroup:
//   - in a container without a cgroup namespace of its own that can mount cgroupfs, and
//     in one with a writable bind mount of the host's /sys/fs/cgroup;
//   - in a container in the host's pid namespace, which can enter the cgroup namespace of
//     the host's init, or its root through /proc;
//   - in a container with CAP_DAC_READ_SEARCH that mounts cgroupfs: open_by_handle_at(2)
//     leads from any directory of a file system to any other;
//   - in a container that can write to the host's disks or its root.
func CreateOuterCgroup(ctx context.Context, h cgroup.Hierarchy, path string, rules []edits.Rule) error {
	if err := createOuterCgroup(ctx, h, path, outerRules(rules)); err != nil {
		return fmt.Errorf("make outer cgroup %s: %w", path, err)
	}
	return nil
}

// outerRules adds the rules that runtimes set in every container. On version 1 the runtime could not
// write them if the parent denied them. The console is allowed by crun only.
func outerRules(rules []edits.Rule) []edits.Rule {
	return slices.Concat(rules, Defaults(), []edits.Rule{{Allow: true, Type: "c", Major: 5, Minor: 1, Access: "rwm"}})
}

func createOuterCgroup(ctx context.Context, h cgroup.Hierarchy, path string, rules []edits.Rule) (err error) {
	w, err := prepareRules(h.Version, rules)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for {
		if done, err := w.tryBuild(ctx, h, path); done || err != nil {
			return err
		}
	}
}

// tryBuild sets the rules once. done is false if it had to remove the cgroup, because it had
// children, and must be called again.
func (w preparedRules) tryBuild(ctx context.Context, h cgroup.Hierarchy, path string) (done bool, err error) {
	d, err := lockCgroup(ctx, h, path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if done, err := w.isInPlace(d.dir); done || err != nil {
		return done, err
	}
	alive, err := h.Populated(path)
	if err != nil {
		return false, err
	}
	if alive {
		return false, fmt.Errorf("it has other rules, and %w", ErrInUse)
	}
	// A cgroup of version 1 that has children can't be narrowed, even while the kernel removes them.
	if parent, err := hasChildren(d.dir); parent || err != nil {
		return false, errors.Join(err, h.Remove(ctx, path))
	}
	if err := w.buildRules(d.dir); err != nil {
		return false, err
	}
	if done, err = w.isInPlace(d.dir); err == nil && !done {
		err = errors.New("the kernel doesn't have the rules that were written")
	}
	return done, err
}

func hasChildren(d *os.File) (bool, error) {
	entries, err := os.ReadDir(d.Name())
	return slices.ContainsFunc(entries, os.DirEntry.IsDir), err
}

// lockCgroup creates the cgroup and locks it, so that it isn't created and removed at the same time.
// Closing the descriptor unlocks it.
func lockCgroup(ctx context.Context, h cgroup.Hierarchy, path string) (*cgroupLock, error) {
	dir, err := childDir(h, path)
	if err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := h.Create(path); err != nil {
			return nil, err
		}
		d, err := lockDir(ctx, h, dir)
		if err == nil || !errors.Is(err, unix.ENOENT) {
			return d, err
		}
	}
}

// cgroupLock is the lock of a cgroup, and its directory.
type cgroupLock struct {
	dir, lock *os.File
}

// Close unlocks the cgroup.
func (l cgroupLock) Close() error { return errors.Join(l.dir.Close(), l.lock.Close()) }

// lockDir locks the cgroup with the directory dir. The error Is ErrNotExist if there is no such
// cgroup, or if it was replaced before the lock was taken.
func lockDir(ctx context.Context, h cgroup.Hierarchy, dir string) (*cgroupLock, error) {
	path, flags := rootsFile(h, dir)
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, missingError(err, dir)
	}
	if err := lock.Acquire(ctx, int(f.Fd()), lock.Exclusive); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, errors.Join(missingError(err, dir), f.Close())
	}
	// Checked again in this order: if the directory is still the one that was opened, its file
	// existed, or was missing, during the whole time.
	if again, _ := rootsFile(h, dir); again != path || !lock.IsAt(int(f.Fd()), path) {
		return nil, errors.Join(missingError(unix.ENOENT, dir), d.Close(), f.Close())
	}
	return &cgroupLock{d, f}, nil
}

// missingError is an error that Is ErrNotExist if err says that the cgroup is gone, and err otherwise.
func missingError(err error, dir string) error {
	if cgroup.IsGone(err) {
		return &os.PathError{Op: "lock", Path: dir, Err: unix.ENOENT}
	}
	return err
}

// rootsFile returns a file of the cgroup that only root can open, because any process that can open
// a file can hold its lock for ever. On version 2 there is one since Linux 5.14; before, it is the
// directory, and ctx limits the wait.
func rootsFile(h cgroup.Hierarchy, dir string) (path string, flags int) {
	if h.Version == cgroup.V1 {
		return filepath.Join(dir, "devices.allow"), os.O_WRONLY
	}
	path = filepath.Join(dir, "cgroup.kill")
	if _, err := os.Stat(path); errors.Is(err, unix.ENOENT) {
		return dir, os.O_RDONLY
	}
	return path, os.O_WRONLY
}

func childDir(h cgroup.Hierarchy, path string) (dir string, err error) {
	root, err := h.Dir("/")
	if err != nil {
		return "", err
	}
	dir, err = h.Dir(path)
	if err == nil && dir == root {
		err = fmt.Errorf("%w: %q is the root cgroup", cgroup.ErrPath, path)
	}
	return dir, err
}

// RemoveOuterCgroup removes what [CreateOuterCgroup] made and everything below it, in each tree in which a runtime
// made it too. If processes run in it, the error is ErrInUse and the rules stay. A missing cgroup is
// not an error. The kernel keeps a cgroup busy for a moment after its last process has ended; ctx
// bounds the wait for that.
func RemoveOuterCgroup(ctx context.Context, h cgroup.Hierarchy, path string) error {
	if err := removeOuterCgroup(ctx, h, path); err != nil {
		return fmt.Errorf("remove outer cgroup %s: %w", path, err)
	}
	return nil
}

func removeOuterCgroup(ctx context.Context, h cgroup.Hierarchy, path string) (err error) {
	dir, err := childDir(h, path)
	if err != nil {
		return err
	}
	trees, err := h.ListTrees()
	if err != nil {
		return err
	}
	d, err := lockExisting(ctx, h, dir)
	if err != nil {
		return err
	}
	if d != nil {
		defer func() { err = errors.Join(err, d.Close()) }()
	} else {
		trees = slices.DeleteFunc(trees, func(t cgroup.Hierarchy) bool { return t.Root == h.Root })
	}
	// All trees are checked before the first cgroup is removed: after ErrInUse nothing has changed.
	for _, t := range trees {
		if alive, err := t.Populated(path); err != nil || alive {
			return errors.Join(err, busyError(alive))
		}
	}
	for _, t := range trees {
		err = errors.Join(err, t.Remove(ctx, path))
	}
	return err
}

// lockExisting locks the cgroup. It returns nil if there is no such cgroup.
func lockExisting(ctx context.Context, h cgroup.Hierarchy, dir string) (*cgroupLock, error) {
	for {
		d, err := lockDir(ctx, h, dir)
		if !errors.Is(err, unix.ENOENT) {
			return d, err
		}
		if _, err := os.Stat(dir); errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		if err := ctx.Err(); err != nil { // a canceled context means a single try
			return nil, err
		}
	}
}

func busyError(alive bool) error {
	if alive {
		return ErrInUse
	}
	return nil
}
