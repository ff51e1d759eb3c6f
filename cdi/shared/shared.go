// Package shared mounts the directory of the files that several containers have bound, such
// that no container owns them.
//
// The owner of a file can take a lease on it (fcntl(2), F_SETLEASE). A process that opens the
// file then waits until the lease is released or the kernel breaks it, 45 seconds later. A
// read-only bind mount does not prevent that. Root in a container is the host's root unless
// the container has a user namespace, and can become every other user as well, so another
// owner of the files does not help either. An idmapped mount does: its user namespace maps
// none of the files' owners, so for the kernel no process owns the files there, has a
// capability over them, or can write to them. They are read and executed by the
// permissions of others. Bind mounts that runtimes make of it stay idmapped.
//
// What it doesn't prevent: CAP_LEASE takes leases on any file, so containers with a lease of
// devices don't get it. A container with CAP_SYS_ADMIN can clone the mount without the
// mapping (Linux 6.15, open_tree_attr(2)), and can delay opens by other means (fanotify(7)).
//
// Needs Linux 5.12, and a file system that can be idmapped: ext4, xfs, btrfs; tmpfs since
// Linux 6.3; overlay cannot.
package shared

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// ErrUnsupported says that the kernel or the file system cannot mount a directory like that.
var ErrUnsupported = errors.New("idmapped mounts are not supported")

// Dir is a directory of root's, and where it is mounted for containers.
type Dir struct {
	// Source is the directory. Everybody may read what is in it.
	Source string
	// Mount is the mount point. If it is "", containers get the files of Source itself.
	Mount string
}

// InData is the directory of the driver's files below berth's data directory.
func InData(data string) Dir {
	return Dir{Source: filepath.Join(data, "driver"), Mount: filepath.Join(data, "shared")}
}

// PathForContainers returns the source of a bind mount of a file below Source.
func (d Dir) PathForContainers(file string) string {
	below, ok := strings.CutPrefix(file, d.Source+"/")
	if d.Mount == "" || !ok {
		return file
	}
	return filepath.Join(d.Mount, below)
}

// FileOf returns the file below Source that is the source of a bind mount, whether the mount
// point is used or not; "" for other sources.
func (d Dir) FileOf(source string) string {
	for _, top := range []string{d.Source, d.Mount} {
		if below, ok := strings.CutPrefix(source, top+"/"); ok && top != "" {
			return filepath.Join(d.Source, below)
		}
	}
	return ""
}

// IsMounted reports whether Mount shows the directory with owners that are not mapped, in the
// mount namespace of the caller. It makes two system calls.
func (d Dir) IsMounted() bool {
	var source, mounted unix.Stat_t
	if unix.Stat(d.Source, &source) != nil || unix.Stat(d.Mount, &mounted) != nil {
		return false
	}
	return source.Dev == mounted.Dev && source.Ino == mounted.Ino && source.Uid != mounted.Uid
}

// EnsureMounted mounts the directory unless it is mounted already, in the mount namespace of
// the caller. The error Is ErrUnsupported if this can't be done on this machine. Calls in
// all processes wait for each other. Containers that use an older mount keep it.
func (d Dir) EnsureMounted(ctx context.Context) error {
	if d.IsMounted() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(d.Mount), 0o755); err != nil { // the data directory may be missing: a task can be the first use of berth
		return err
	}
	held, err := lock.Create(ctx, d.Mount+".lock", 0o600, lock.Exclusive)
	if err != nil {
		return err
	}
	defer held.Close() // nothing was written
	if d.IsMounted() {
		return nil
	}
	if err := d.mount(); err != nil {
		return fmt.Errorf("mount %s on %s without its owner: %w", d.Source, d.Mount, err)
	}
	return nil
}

// MountIfSupported is EnsureMounted for a caller that also works without the mount. Where the
// machine can't mount the directory, the result is d without Mount.
func (d Dir) MountIfSupported(ctx context.Context) (Dir, error) {
	err := d.EnsureMounted(ctx)
	if errors.Is(err, ErrUnsupported) {
		return Dir{Source: d.Source}, nil
	}
	return d, err
}

func (d Dir) mount() error {
	for _, dir := range []string{d.Source, d.Mount} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(d.Source, 0o755); err != nil { // whatever the umask
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, d.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return markUnsupported(err)
	}
	defer func() { _ = unix.Close(tree) }() // the mount stays where it was moved
	users, err := openUserNamespace()
	if err != nil {
		return markUnsupported(err)
	}
	defer users.Close() // nothing was written
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Userns_fd: uint64(users.Fd()),
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return markUnsupported(err)
	}
	// Unmount an older mount, of a directory that was removed since. EINVAL: there is none.
	if err := unix.Unmount(d.Mount, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, d.Mount, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// markUnsupported makes an error that the machine gives each time an ErrUnsupported: not one
// that a container could provoke, such as too many user namespaces.
func markUnsupported(err error) error {
	limit, readErr := smallfile.String("/proc/sys/user/max_user_namespaces")
	none := errors.Is(err, unix.ENOSPC) && readErr == nil && limit == "0"
	if none || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// unownedID is the only id that the mount's user namespace maps: the last before the invalid
// one. No file in the directory has it.
const unownedID = 1<<32 - 2

// openUserNamespace opens a user namespace that maps unownedID alone. The namespace is made
// for a process that never runs: the process is traced, so it stops when it executes its
// program, and is killed there.
func openUserNamespace() (*os.File, error) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	ids := []syscall.SysProcIDMap{{ContainerID: unownedID, HostID: unownedID, Size: 1}}
	process, err := os.StartProcess("/proc/self/exe", []string{"berth"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			Ptrace: true, Pdeathsig: syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", process.Pid))
	_ = process.Kill() // the process hasn't been waited for, so it exists
	_, waitErr := process.Wait()
	if err := errors.Join(err, waitErr); err != nil {
		return nil, fmt.Errorf("open the user namespace: %w", err)
	}
	return users, nil
}
