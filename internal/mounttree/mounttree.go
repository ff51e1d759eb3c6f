// Package mounttree makes detached mounts, which have no path and are reached by their descriptors alone, and attaches them (open_tree(2),
// fsmount(2), move_mount(2): Linux 5.12).
package mounttree

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrUnsupported means that a mount isn't a bind mount, or has an option that bind mounts haven't.
var ErrUnsupported = errors.New("it is no bind mount or no option of one")

// Bind is a bind mount that isn't attached anywhere.
type Bind struct {
	specs.Mount
	Tree  *os.File // the detached mount
	IsDir bool
}

// CloneBinds clones the sources of bind mounts on the host, and sets their flags: a mount
// has its final flags from the moment at which it appears in the container.
func CloneBinds(mounts []specs.Mount) (all []Bind, err error) {
	for _, m := range mounts {
		src, err := CloneBind(m)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mount %s: %w", m.Destination, err), CloseAll(all))
		}
		all = append(all, src)
	}
	return all, nil
}

// CloseAll closes bind mounts, which ends those that aren't attached.
func CloseAll(binds []Bind) (err error) {
	for _, s := range binds {
		err = errors.Join(err, s.Tree.Close())
	}
	return err
}

// CloneBind clones the source of a bind mount, as CloneBinds does.
func CloneBind(m specs.Mount) (Bind, error) {
	attr, recursive, err := parseBindOptions(m)
	if err != nil {
		return Bind{}, err
	}
	tree, err := Clone(m.Source, recursive)
	if err != nil {
		return Bind{}, err
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
		return Bind{}, errors.Join(fmt.Errorf("set flags of %s: %w", m.Source, err), tree.Close())
	}
	return Bind{m, tree, st.IsDir()}, nil
}

// Clone clones the mount at a path of the host, which is trusted.
func Clone(path string, recursive bool) (*os.File, error) {
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
// otherwise.
func parseBindOptions(m specs.Mount) (attr unix.MountAttr, recursive bool, err error) {
	if m.Type != "bind" && !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
		return attr, false, fmt.Errorf("a %q file system: %w", m.Type, ErrUnsupported)
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
			return attr, false, fmt.Errorf("option %q: %w", o, ErrUnsupported)
		}
	}
	return attr, recursive, nil
}

// Attach moves a detached mount onto an open file or directory.
func Attach(tree, at *os.File) error {
	const byDescriptor = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(tree.Fd()), "", int(at.Fd()), "", byDescriptor); err != nil {
		return fmt.Errorf("attach %s to %s: %w", tree.Name(), at.Name(), err)
	}
	return nil
}

// Mask hides an open file or directory as OCI runtimes do: by what cloneNull returns, a mount of /dev/null, or by an empty directory.
func Mask(at *os.File, cloneNull func() (*os.File, error)) error {
	st, err := at.Stat()
	if err != nil {
		return err
	}
	empty := NewEmpty
	if !st.IsDir() {
		empty = cloneNull
	}
	tree, err := empty()
	if err != nil {
		return err
	}
	defer tree.Close() // attached by then, or of no use
	return Attach(tree, at)
}

// NewEmpty returns an empty read-only file system.
func NewEmpty() (*os.File, error) {
	return New(specs.Mount{Type: "tmpfs", Options: []string{"ro", "nosuid", "nodev", "noexec"}})
}

// NewTmpfs returns an empty tmpfs that holds at most size bytes, without devices and set-user-ID programs.
func NewTmpfs(size int64, mode os.FileMode) (*os.File, error) {
	return New(specs.Mount{Type: "tmpfs", Options: []string{"nosuid", "nodev", fmt.Sprintf("size=%d", size), fmt.Sprintf("mode=%o", mode)}})
}

// New returns a new file system of a type that needs no source.
func New(m specs.Mount) (*os.File, error) {
	fsfd, err := unix.Fsopen(m.Type, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", m.Type, err)
	}
	defer func() { _ = unix.Close(fsfd) }() // nothing was written
	flags := map[string]int{
		"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
	}
	attr := 0
	for _, o := range append([]string{"source=" + m.Type}, m.Options...) {
		key, value, hasValue := strings.Cut(o, "=")
		switch {
		case flags[o] != 0:
			attr |= flags[o]
			continue
		case hasValue:
			err = unix.FsconfigSetString(fsfd, key, value)
		default:
			err = unix.FsconfigSetFlag(fsfd, key)
		}
		if err != nil {
			return nil, fmt.Errorf("make a %s with %s: %w", m.Type, o, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, fmt.Errorf("make a %s: %w", m.Type, err)
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", m.Type, err)
	}
	return os.NewFile(uintptr(fd), "a "+m.Type), nil
}
