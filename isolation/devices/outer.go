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

// outerName of the program of an outer cgroup, as bpftool shows it.
const outerName = "berth_outer"

// ErrInUse: processes live in a cgroup whose rules were to change, or that was to
// go. errors.Is says so of unix.EBUSY too.
var ErrInUse = fmt.Errorf("processes live in it: %w", unix.EBUSY)

// MakeOuter makes the cgroup at path, in which a runtime then makes the container's
// own (linux.cgroupsPath is to name a child of it), and gives it these rules and what
// every runtime's own rules need. What the container does to its own cgroup's rules
// can only narrow what the outer one allows.
//
// When it returns without an error the wall stands, made now or found complete; after
// an error, or if the caller dies inside, the cgroup must not be used: the next
// MakeOuter of the path finishes or replaces what is there. What earlier
// lives left in it is removed. If processes live in it and its rules are others, that is
// ErrInUse, and nothing changes.
//
// The path must be of this life alone, with the lease's id in it: otherwise a late
// [RemoveOuter] of the life before could take the cgroup away between MakeOuter and
// the runtime, which would make it again without a wall.
//
// What it can't hold back is who reaches the outer cgroup's directory and has
// CAP_SYS_ADMIN:
//   - a container without a cgroup namespace of its own that can mount cgroupfs, and
//     one in which the host's /sys/fs/cgroup is bound for writing;
//   - one in the host's pid namespace, which can enter the cgroup namespace of the
//     host's init, or its root through /proc;
//   - with CAP_DAC_READ_SEARCH, one that mounts cgroupfs: open_by_handle_at(2) leads
//     from any directory of a file system to any other;
//   - whoever can write to the host otherwise: its disks, its root.
func MakeOuter(ctx context.Context, h cgroup.Hierarchy, path string, rules []edits.Rule) error {
	if err := makeOuter(ctx, h, path, outerRules(rules)); err != nil {
		return fmt.Errorf("make outer cgroup %s: %w", path, err)
	}
	return nil
}

// outerRules adds what runtimes allow whatever the spec says; on version 1 they
// couldn't write it otherwise. The console is crun's.
func outerRules(rules []edits.Rule) []edits.Rule {
	return slices.Concat(rules, Defaults(), []edits.Rule{{Allow: true, Type: "c", Major: 5, Minor: 1, Access: "rwm"}})
}

func makeOuter(ctx context.Context, h cgroup.Hierarchy, path string, rules []edits.Rule) (err error) {
	w, err := wallOf(h.Version, rules)
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

// tryBuild is not done when it removed what was in the way, and the cgroup with it.
func (w wall) tryBuild(ctx context.Context, h cgroup.Hierarchy, path string) (done bool, err error) {
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
	// Version 1 narrows no cgroup that has children, not even while the kernel buries
	// them.
	if parent, err := hasChildren(d.dir); parent || err != nil {
		return false, errors.Join(err, h.Remove(ctx, path))
	}
	if err := w.buildRules(d.dir); err != nil {
		return false, err
	}
	if done, err = w.isInPlace(d.dir); err == nil && !done {
		err = errors.New("its rules aren't as they were set")
	}
	return done, err
}

func hasChildren(d *os.File) (bool, error) {
	entries, err := os.ReadDir(d.Name())
	return slices.ContainsFunc(entries, os.DirEntry.IsDir), err
}

// lockCgroup makes the cgroup and holds it, so that making and removing one cgroup don't
// meet. The lock ends with the descriptor.
func lockCgroup(ctx context.Context, h cgroup.Hierarchy, path string) (*cgroupLock, error) {
	dir, err := notRoot(h, path)
	if err != nil {
		return nil, err
	}
	for {
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

// Close gives the lock up.
func (l cgroupLock) Close() error { return errors.Join(l.dir.Close(), l.lock.Close()) }

// lockDir locks the cgroup with the directory dir. The error Is ErrNotExist if there is no such
// cgroup, or another one by the time the lock is there.
func lockDir(ctx context.Context, h cgroup.Hierarchy, dir string) (*cgroupLock, error) {
	path, flags := rootsFile(h, dir)
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	if err := lock.Acquire(ctx, int(f.Fd()), lock.Exclusive); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !lock.IsAt(int(f.Fd()), path) {
		return nil, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: unix.ENOENT}, d.Close(), f.Close())
	}
	return &cgroupLock{d, f}, nil
}

// rootsFile is a file of the cgroup that only root can open: whoever can open a file can hold its lock
// for ever. On version 2 there is one since Linux 5.14; before, it is the directory, and ctx limits the wait.
func rootsFile(h cgroup.Hierarchy, dir string) (path string, flags int) {
	if h.Version == cgroup.V1 {
		return filepath.Join(dir, "devices.allow"), os.O_WRONLY
	}
	path = filepath.Join(dir, "cgroup.kill")
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return !errors.Is(err, unix.ENOENT)
	}
	// The third look: the cgroup wasn't created between the first two.
	if !exists("cgroup.kill") && exists("cgroup.procs") && !exists("cgroup.kill") {
		return dir, os.O_RDONLY
	}
	return path, os.O_WRONLY
}

func notRoot(h cgroup.Hierarchy, path string) (dir string, err error) {
	root, err := h.Dir("/")
	if err != nil {
		return "", err
	}
	dir, err = h.Dir(path)
	if err == nil && dir == root {
		err = fmt.Errorf("%w: %q is the root of all", cgroup.ErrPath, path)
	}
	return dir, err
}

// RemoveOuter removes what [MakeOuter] made and everything below it, in each tree in
// which a runtime made it too. While processes live in it, it is ErrInUse, and the
// rules stay; one that is gone is no error. The kernel keeps a cgroup busy for a
// moment after its last process: ctx says how long to wait for that.
func RemoveOuter(ctx context.Context, h cgroup.Hierarchy, path string) error {
	if err := removeOuter(ctx, h, path); err != nil {
		return fmt.Errorf("remove outer cgroup %s: %w", path, err)
	}
	return nil
}

func removeOuter(ctx context.Context, h cgroup.Hierarchy, path string) (err error) {
	dir, err := notRoot(h, path)
	if err != nil {
		return err
	}
	trees, err := h.ListTrees()
	if err != nil {
		return err
	}
	d, err := lockOld(ctx, h, dir)
	if err != nil {
		return err
	}
	if d != nil {
		defer func() { err = errors.Join(err, d.Close()) }()
	} else {
		trees = slices.DeleteFunc(trees, func(t cgroup.Hierarchy) bool { return t.Root == h.Root })
	}
	// All are looked at before the first goes, so that in use means untouched.
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

// lockOld is nil if there is no such cgroup.
func lockOld(ctx context.Context, h cgroup.Hierarchy, dir string) (*cgroupLock, error) {
	for {
		d, err := lockDir(ctx, h, dir)
		if !errors.Is(err, unix.ENOENT) {
			return d, err
		}
		if _, err := os.Stat(dir); errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
	}
}

func busyError(alive bool) error {
	if alive {
		return ErrInUse
	}
	return nil
}
