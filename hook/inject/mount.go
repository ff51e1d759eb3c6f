package inject

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/inroot"
)

// source is a detached mount: it has no path, and is reached by its descriptor alone.
type source struct {
	specs.Mount
	tree  *os.File
	isDir bool
}

// cloneSources clones the sources of mounts on the host, and sets their flags: a mount
// has its final flags from the moment at which it appears in the container.
func cloneSources(mounts []specs.Mount) (all []source, err error) {
	for _, m := range mounts {
		src, err := cloneSource(m)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mount %s: %w", m.Destination, err), closeAll(all))
		}
		all = append(all, src)
	}
	return all, nil
}

func closeAll(sources []source) (err error) {
	for _, s := range sources {
		err = errors.Join(err, s.tree.Close())
	}
	return err
}

func cloneSource(m specs.Mount) (source, error) {
	attr, recursive, err := parseBindOptions(m)
	if err != nil {
		return source{}, err
	}
	tree, err := cloneTree(m.Source, recursive)
	if err != nil {
		return source{}, err
	}
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	st, err := tree.Stat()
	if err == nil {
		err = unix.MountSetattr(int(tree.Fd()), "", flags, &attr)
	}
	if err != nil {
		return source{}, errors.Join(fmt.Errorf("set flags of %s: %w", m.Source, err), tree.Close())
	}
	return source{m, tree, st.IsDir()}, nil
}

// cloneTree clones the mount at a path of the host, which is trusted.
func cloneTree(path string, recursive bool) (*os.File, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, flags)
	if err != nil {
		return nil, &os.PathError{Op: "clone mount", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// parseBindOptions reads a bind mount's options. A mount is private unless they say
// otherwise. Another type of mount, and an option that no bind has, are ErrCannot.
func parseBindOptions(m specs.Mount) (attr unix.MountAttr, recursive bool, err error) {
	if m.Type != "bind" && !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
		return attr, false, fmt.Errorf("a %q file system %w: only binds can", m.Type, ErrCannot)
	}
	set := map[string]uint64{
		"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID,
		"nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
	}
	unset := map[string]uint64{
		"rw": unix.MOUNT_ATTR_RDONLY, "suid": unix.MOUNT_ATTR_NOSUID,
		"dev": unix.MOUNT_ATTR_NODEV, "exec": unix.MOUNT_ATTR_NOEXEC,
	}
	propagation := map[string]uint64{
		"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE,
		"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE,
		"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED,
	}
	attr.Propagation = unix.MS_PRIVATE
	for _, o := range m.Options {
		switch {
		case o == "bind":
		case o == "rbind":
			recursive = true
		case set[o] != 0:
			attr.Attr_set |= set[o]
			attr.Attr_clr &^= set[o]
		case unset[o] != 0:
			attr.Attr_clr |= unset[o]
			attr.Attr_set &^= unset[o]
		case propagation[o] != 0:
			attr.Propagation = propagation[o]
		default:
			return attr, false, fmt.Errorf("option %q %w", o, ErrCannot)
		}
	}
	return attr, recursive, nil
}

// mountSource attaches a source at its destination below the root.
func (s *openContainer) mountSource(src source) error {
	at, err := s.openTarget(src.Destination, src.isDir)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return attachTree(src.tree, at)
}

// attachTree moves a detached mount onto an open file or directory.
func attachTree(tree, at *os.File) error {
	const byDescriptor = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(tree.Fd()), "", int(at.Fd()), "", byDescriptor); err != nil {
		return fmt.Errorf("attach %s to %s: %w", tree.Name(), at.Name(), err)
	}
	return nil
}

// removeMount unmounts a bind that the runtime has made. It is identified by its source,
// which must be what is mounted there. If nothing is mounted there, a hook of an earlier
// stage has removed it.
func (s *openContainer) removeMount(r edits.MountRef) error {
	at, err := inroot.Open(s.root, r.Destination, 0)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	id, isRoot, err := mountOfFile(at)
	if err != nil {
		return err
	}
	switch {
	case !isRoot:
		return nil
	case id == s.rootID:
		return errors.New("nothing is mounted there but the root")
	}
	if r.Source != "" {
		if err := checkSameFile(at, r.Source); err != nil {
			return err
		}
	}
	return detachMount(at)
}

// checkSameFile returns an error unless an open file is the host's file at the path.
func checkSameFile(f *os.File, path string) error {
	there, err := runOutside(func() (st unix.Stat_t, err error) { return st, unix.Stat(path, &st) })
	if err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	var here unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &here); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	if here.Dev != there.Dev || here.Ino != there.Ino {
		return fmt.Errorf("it is not a mount of %s", path)
	}
	return nil
}

// detachMount unmounts the mount of which an open file is the root.
func detachMount(f *os.File) error {
	if err := unix.Unmount(fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd()), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", f.Name(), err)
	}
	return nil
}
