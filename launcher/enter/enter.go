// Package enter makes this process a process of an image: it mounts a root file system of the image, binds directories and devices of the
// host, and executes a program there. The container has no runtime and no monitor: the program has this process's pid, terminal,
// signals, file descriptors and cgroup, as under Apptainer.
//
// The process has a mount namespace of its own, so nothing has to be unmounted: the mounts end with its last descendant. It has
// CAP_SYS_ADMIN there, as root of the machine or in a user namespace ([userns.EnterAsSelf]). All functions are called from one goroutine, which is
// locked to its thread before [Open]. Needs Linux 5.12 (mount_setattr).
package enter

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/mounttree"
	"github.com/berth-gpu/berth/launcher/overlay"
)

// Options of a root file system.
type Options struct {
	// Image is the image's root: a detached mount, or nil for the directory Dir.
	Image *os.File
	Dir   string
	// Layers are the directories of the image's layers, topmost first, instead of Image and Dir.
	Layers []string
	// Above have files that hide those of the image, topmost first.
	Above []Overlay
	// Session is an existing directory of the host. A tmpfs of at most Size bytes hides it in this process's mount namespace. The
	// tmpfs has what is written to the root file system.
	Session string
	Size    int64
	// InPlace means that writes go to Dir or Image.
	InPlace bool
	// Writes is an existing directory for what is written, which is kept in upper and work below it. WritesTree is a detached mount of such a directory instead.
	// Without them it is kept in memory.
	Writes     string
	WritesTree *os.File
	// Mounts are made in this order by [Container.MountFirst]: bind mounts and file systems without a source. Later are made by [Container.MountLater], and
	// then those of Missing, bind mounts, unless their source or another mount is at the destination already. All sources are opened first, and can't
	// be hidden by this process's mounts.
	Mounts, Later, Missing []specs.Mount
	// Others are paths in the container that the caller will create.
	Others []string
}

// Overlay is a directory, or the detached mount Tree. HasUpper means that the files of the mount are in its directory upper.
type Overlay struct {
	Dir      string
	Tree     *os.File
	HasUpper bool
}

// Container is an image's root file system that this process has not entered yet.
type Container struct {
	// Root is its directory. [Container.Enter] closes it.
	Root    *os.File
	session string
	// own are the ids of mounts in which files may be created for other mounts: links of the image can lead to directories of the host.
	own                   map[uint64]bool
	first, later, missing []mounttree.Bind
}

// ErrHiddenProc means that the kernel allows no new procfs in a user namespace, as in many containers. Source: mount_too_revealing in
// fs/namespace.c.
var ErrHiddenProc = errors.New("this machine's /proc is hidden in part, as in a container, so that the kernel allows no other one")

// Open mounts an image's root file system. It can be written to until [Container.SetReadOnly].
func Open(o Options) (*Container, error) {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	c := &Container{session: o.Session, own: map[uint64]bool{}}
	var err error
	if c.first, err = openMounts(o.Mounts); err != nil { // before there are mounts on the host's directories
		return nil, err
	}
	if c.later, err = openMounts(o.Later); err != nil {
		return nil, err
	}
	if c.missing, err = openMounts(o.Missing); err != nil {
		return nil, err
	}
	session, err := mounttree.NewTmpfs(o.Size, 0o755)
	if err != nil {
		return nil, err
	}
	defer session.Close() // attached by then, or of no use
	for _, name := range []string{"image", "root"} {
		if err := unix.Mkdirat(int(session.Fd()), name, 0o755); err != nil {
			return nil, fmt.Errorf("make the container's directories: %w", err)
		}
	}
	at, err := os.OpenFile(o.Session, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close() // an O_PATH descriptor
	if err := mounttree.Attach(session, at); err != nil {
		return nil, err
	}
	image, lower := c.in("image"), o.Layers
	switch {
	case len(lower) > 0:
		image = lower[0] // its mode is the root's
	case o.Image == nil:
		err, lower = overlay.BindMount(image, o.Dir), []string{image}
	default:
		err, lower = attachAt(o.Image, image), []string{image}
	}
	if err != nil {
		return nil, err
	}
	if o.InPlace {
		err = overlay.BindMount(c.in("root"), image)
	} else {
		err = c.mountOverlays(lower, image, o)
	}
	if err != nil {
		return nil, err
	}
	if c.Root, err = inroot.OpenRoot(c.in("root")); err != nil {
		return nil, err
	}
	if err := c.addOwn(c.Root); err != nil {
		return nil, err
	}
	return c, nil
}

// MountFirst makes the mounts of Options.Mounts. Before, the root file system has no file of the host.
func (c *Container) MountFirst() error { return c.attachAll(c.first) }

// mountOverlays mounts the root file system above the image's and those of the overlays.
func (c *Container) mountOverlays(lower []string, image string, o Options) error {
	var above []string
	for i, l := range o.Above {
		dir := l.Dir
		if l.Tree != nil {
			at, err := c.attachOverlay(strconv.Itoa(i), l.Tree)
			if err != nil {
				return err
			}
			if dir = at; l.HasUpper {
				upper, err := openUpper(at)
				if err != nil {
					return err
				}
				defer upper.Close() // an O_PATH descriptor
				dir = procPath(upper)
			}
		}
		above = append(above, dir)
	}
	if o.WritesTree != nil {
		var err error
		if o.Writes, err = c.attachOverlay("writes", o.WritesTree); err != nil {
			return err
		}
	}
	return c.mountOverlay(append(above, lower...), image, o)
}

// attachOverlay attaches a detached mount in the session and returns its path.
func (c *Container) attachOverlay(name string, tree *os.File) (at string, err error) {
	at = c.in("overlay-" + name)
	if err := os.Mkdir(at, 0o700); err != nil {
		return "", err
	}
	return at, attachAt(tree, at)
}

// openUpper opens the directory upper of an overlay, in which a link would lead to a directory of the host.
func openUpper(at string) (*os.File, error) {
	root, err := inroot.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	defer root.Close() // an O_PATH descriptor
	upper, err := inroot.Open(root, "upper", unix.O_NOFOLLOW|unix.O_DIRECTORY)
	if err != nil {
		return nil, errors.New("an overlay has no directory upper: apptainer overlay create makes one that has")
	}
	return upper, nil
}

// mountOverlay mounts the root file system above the image's. What is written is kept below a directory of the host, which may be another user's, so no link in
// it is followed. "" means the session's.
func (c *Container) mountOverlay(lower []string, image string, o Options) error {
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return fmt.Errorf("read the image's root directory: %w", err)
	}
	mode := os.FileMode(st.Mode).Perm()
	dir, err := inroot.OpenRoot(cmp.Or(o.Writes, c.session))
	if err != nil {
		return err
	}
	defer dir.Close() // an O_PATH descriptor
	upper, err := inroot.MakeDir(dir, "upper", mode)
	if err != nil {
		return err
	}
	defer upper.Close() // an O_PATH descriptor
	work, err := inroot.MakeDir(dir, "work", 0o755)
	if err != nil {
		return err
	}
	defer work.Close() // an O_PATH descriptor

	if o.Image == nil && len(o.Layers) == 0 { // other images' files are this user's
		if err := makeForeignDirectories(image, upper, o.listPaths()); err != nil {
			return err
		}
	}
	return overlay.Mount(c.in("root"), overlay.Layers{Lower: lower, Upper: procPath(upper), Work: procPath(work), Lasting: o.Writes != ""})
}

// listPaths returns the paths in the container that are mount points, or will be created.
func (o Options) listPaths() []string {
	all := slices.Clone(o.Others)
	for _, m := range slices.Concat(o.Mounts, o.Later, o.Missing) {
		all = append(all, m.Destination)
	}
	return all
}

// procPath is a path of an open file.
func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// addOwn lets files be created in a mount.
func (c *Container) addOwn(f *os.File) error {
	id, err := readMountID(f)
	if err == nil {
		c.own[id] = true
	}
	return err
}

// readMountID returns the number of the mount of an open file.
func readMountID(f *os.File) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st.Mnt_id, nil
}

// checkOwn returns an error unless files may be created in a directory.
func (c *Container) checkOwn(dir *os.File) error {
	id, err := readMountID(dir)
	if err == nil && c.own != nil && !c.own[id] {
		err = errors.New("a link of the image leads to a directory of the host")
	}
	return err
}

// MountLater makes the mounts of Options.Later and Missing. Their destinations are the user's: they may be in directories of the host.
func (c *Container) MountLater() error {
	own := c.own
	for _, m := range c.later {
		if err := c.addOwn(m.Tree); err != nil {
			return err
		}
	}
	c.own = nil
	if err := c.attachAll(c.later); err != nil {
		return err
	}
	for _, m := range c.missing {
		there, err := c.hasMount(m)
		switch {
		case err != nil:
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		case there:
			_ = m.Tree.Close() // it was of no use
		default:
			if err := c.attach(m); err != nil {
				return err
			}
		}
	}
	c.own = own
	return nil
}

func (c *Container) attachAll(mounts []mounttree.Bind) error {
	for _, m := range mounts {
		if m.Type != "bind" && c.own != nil {
			if err := c.addOwn(m.Tree); err != nil {
				return err
			}
		}
		if err := c.attach(m); err != nil {
			return err
		}
	}
	return nil
}

// openMounts returns detached mounts. They end with this process or with its next program, unless they are attached.
func openMounts(mounts []specs.Mount) (all []mounttree.Bind, err error) {
	for _, m := range mounts {
		b, err := openTree(m)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Destination, err)
		}
		all = append(all, b)
	}
	return all, nil
}

func openTree(m specs.Mount) (mounttree.Bind, error) {
	if m.Type == "bind" || m.Type == "" {
		return mounttree.CloneBind(m)
	}
	tree, err := mounttree.New(m)
	if m.Type == "proc" && errors.Is(err, unix.EPERM) {
		err = ErrHiddenProc
	}
	return mounttree.Bind{Mount: m, Tree: tree, IsDir: true}, err
}

// attach attaches a detached mount at its destination, which is created if it is missing.
func (c *Container) attach(b mounttree.Bind) error {
	defer b.Tree.Close() // attached by then, or of no use
	at, err := c.openTarget(b.Destination, b.IsDir)
	if err != nil {
		return fmt.Errorf("mount %s: %w", b.Destination, err)
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Attach(b.Tree, at)
}

// hasMount reports whether the source of a bind mount, or the root of any mount, is at its destination.
func (c *Container) hasMount(b mounttree.Bind) (bool, error) {
	at, err := inroot.Open(c.Root, b.Destination, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer at.Close() // an O_PATH descriptor
	var there, source unix.Statx_t
	for f, st := range map[*os.File]*unix.Statx_t{at: &there, b.Tree: &source} {
		if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO, st); err != nil {
			return false, err
		}
	}
	isSource := there.Ino == source.Ino && there.Dev_major == source.Dev_major && there.Dev_minor == source.Dev_minor
	return isSource || there.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

func (c *Container) in(name string) string { return filepath.Join(c.session, name) }

func attachAt(tree *os.File, path string) error {
	at, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Attach(tree, at)
}

// WriteFile creates a file outside of the root file system, to be bound into it, and returns its path.
func (c *Container) WriteFile(name string, data []byte, mode os.FileMode) (string, error) {
	p := c.in(name)
	return p, os.WriteFile(p, data, mode)
}

// Symlink creates a symbolic link in the root file system unless there is such a file.
func (c *Container) Symlink(target, name string) error {
	dir, err := c.openDir(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close() // an O_PATH descriptor
	if err := c.checkOwn(dir); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	if err := unix.Symlinkat(target, int(dir.Fd()), path.Base(name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "symlink", Path: name, Err: err}
	}
	return nil
}

// Mount makes a mount of the container. Its source can't be hidden by this process's mounts: see [Options].
func (c *Container) Mount(m specs.Mount) error {
	b, err := openTree(m)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.Destination, err)
	}
	return c.attach(b)
}

// Mask hides a path as OCI runtimes do: /dev/null is bound to a file, and an empty directory to a directory. A missing path needs no mask.
func (c *Container) Mask(name string) error {
	at, err := inroot.Open(c.Root, name, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Mask(at, func() (*os.File, error) { return mounttree.Clone("/dev/null", false) })
}

// Has reports whether there is a file of this path in the container.
func (c *Container) Has(name string) bool { return HasFile(c.Root, name) }

// HasFile reports whether there is a file of this path in a root directory, as [inroot.Open] finds it.
func HasFile(root *os.File, name string) bool {
	f, err := inroot.Open(root, name, 0)
	if err == nil {
		f.Close() // an O_PATH descriptor
	}
	return err == nil
}

// openDir opens a directory of the container, and creates what is missing of its path.
func (c *Container) openDir(name string) (*os.File, error) {
	return c.openTarget(name, true)
}

// openTarget opens the target of a mount, and creates it if it is missing.
func (c *Container) openTarget(name string, isDir bool) (*os.File, error) {
	// Source: the kernel follows at most 40 links (path_resolution(7)).
	for range 40 {
		name = path.Clean("/" + name)
		f, err := inroot.Open(c.Root, name, 0)
		if err == nil {
			err = checkKind(f, isDir)
			return f, err
		}
		if !errors.Is(err, fs.ErrNotExist) || name == "/" {
			return nil, err
		}
		f, next, err := c.createTarget(name, isDir)
		if err != nil || f != nil {
			return f, err
		}
		name = next
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: unix.ELOOP}
}

func checkKind(f *os.File, isDir bool) error {
	st, err := f.Stat()
	if err == nil && st.IsDir() != isDir {
		err = errors.New("the container has a directory where a file is to be mounted, or a file for a directory")
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// createTarget creates an empty file or directory. If there is a link that leads nowhere, it returns the path where it leads.
func (c *Container) createTarget(name string, isDir bool) (f *os.File, next string, err error) {
	parent, err := c.openDir(path.Dir(name))
	if err != nil {
		return nil, "", err
	}
	defer parent.Close() // an O_PATH descriptor
	base := path.Base(name)
	var link [unix.PathMax]byte
	if n, err := unix.Readlinkat(int(parent.Fd()), base, link[:]); err == nil {
		target := string(link[:n])
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		return nil, target, nil
	}
	if err := c.checkOwn(parent); err != nil {
		return nil, "", err
	}
	if isDir {
		err = inroot.Mkdir(parent, base, 0o755)
	} else {
		err = createFile(parent, base)
	}
	if err != nil {
		return nil, "", err
	}
	f, err = inroot.Open(parent, base, unix.O_NOFOLLOW)
	return f, "", err
}

func createFile(dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &fs.PathError{Op: "make", Path: name + " in " + dir.Name(), Err: err}
	}
	return unix.Close(fd)
}

// SetReadOnly makes the root file system read-only; mounts in it stay as they are.
func (c *Container) SetReadOnly() error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, c.in("root"), 0, &attr); err != nil {
		return fmt.Errorf("make the root file system read-only: %w", err)
	}
	return nil
}

// Enter makes the root file system that of this process, with the first of the directories that can be entered as its working
// directory, or else "/", which it returns. The error is that of the first directory.
func (c *Container) Enter(dirs ...string) (at string, err error) {
	defer c.Root.Close() // an O_PATH descriptor
	if err := os.Chdir(procPath(c.Root)); err != nil {
		return "", err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return "", fmt.Errorf("enter the root file system: %w", err)
	}
	// The host's root is mounted over the new one, and the working directory is in it.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return "", fmt.Errorf("leave the host's root file system: %w", err)
	}
	for _, dir := range append(dirs, "/") {
		e := os.Chdir(dir)
		if e == nil {
			return dir, err
		}
		if err == nil {
			err = e
		}
	}
	return "", err
}

// Exec executes a program in place of this process, after [DropPrivileges]. It returns only an error.
func Exec(program string, argv, env []string, asRoot bool) error {
	if err := DropPrivileges(asRoot); err != nil {
		return err
	}
	return &os.PathError{Op: "execute", Path: program, Err: unix.Exec(program, argv, env)}
}
