// Package layertree applies a layer's archive to a directory. Layers are untrusted data: the
// kernel resolves their names inside the directory, and what is written is bounded.
//
// Package image checks digests and decompresses.
package layertree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/overlay"
)

// Tree is a directory into which a layer is unpacked. Names are resolved by the kernel (openat2 with
// RESOLVE_IN_ROOT, Linux 5.6): no name, link or order of entries leads out of it. Only one goroutine may use
// a Tree, and no other process may write to the directory meanwhile.
//
// Directories that the layer describes get the attributes of their entries. Other directories on the path of
// an entry are created, and Finish copies their attributes from the layers below.
type Tree struct {
	root int
	buf  []byte
	// parent is the open directory of the last entry: entries of a directory are mostly adjacent.
	parent     int
	parentPath string
	// implied are the directories that no entry has described yet.
	implied map[string]bool
	// described are the directories' times, which are set when nothing is written to them any more.
	described map[string]time.Time
	// remembered is the length of all names in implied and described, in bytes; maxNames is its limit.
	remembered, maxNames int
	written              int64
	// left is how many bytes may still be written, of limit.
	left, limit int64
}

// Names and prefixes of the image specification's whiteouts.
const (
	whiteout = ".wh."
	reserved = ".wh..wh."
	opaque   = ".wh..wh..opq"
)

// New opens an empty directory, into which at most limit bytes are written.
func New(dir string, limit int64) (*Tree, error) {
	root, err := openDir(unix.AT_FDCWD, dir, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return &Tree{
		root: root, parent: -1, limit: limit, left: limit, maxNames: maxNames, buf: make([]byte, 256<<10),
		implied: map[string]bool{}, described: map[string]time.Time{},
	}, nil
}

// Close closes the directory.
func (t *Tree) Close() {
	t.closeParent()
	_ = unix.Close(t.root) // O_PATH
}

// maxNames bounds the names of a layer's directories, in bytes: they are in memory until Finish. The largest
// images have some 300,000 directories.
const maxNames = 128 << 20

func (t *Tree) boundNames(name string) error {
	if t.remembered += len(name); t.remembered > t.maxNames {
		return fmt.Errorf("the names of its directories have more than the %d bytes that a layer's may have", t.maxNames)
	}
	return nil
}

func (t *Tree) closeParent() {
	if t.parent >= 0 {
		_ = unix.Close(t.parent) // O_PATH
	}
	t.parent = -1
}

// Apply applies the entries of an archive. An archive that needs more than limit bytes is an error. Sizes are
// those in the headers, which for sparse files are larger than what is read; each entry counts as 4 KiB
// more.
func (t *Tree) Apply(files io.Reader) error {
	archive := tar.NewReader(files)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := t.countSize(h.Size); err != nil {
			return err
		}
		if err := t.applyEntry(h, archive, true); err != nil {
			return nameEntry(h.Name, err)
		}
	}
}

// Add applies one entry of a file system that is no layer: names of whiteouts are those of ordinary files. Limits are those of [Tree.Apply].
func (t *Tree) Add(h *tar.Header, content io.Reader) error {
	if err := t.countSize(h.Size); err != nil {
		return err
	}
	if err := t.applyEntry(h, content, false); err != nil {
		return nameEntry(h.Name, err)
	}
	return nil
}

// countSize counts a file or directory of this size towards the limit.
func (t *Tree) countSize(size int64) error {
	if t.left -= size + 4096; t.left < 0 || size < 0 {
		return fmt.Errorf("its files need more than the %d bytes that a layer may have", t.limit)
	}
	return nil
}

// nameEntry adds the untrusted name of an entry to an error, quoted and shortened.
func nameEntry(name string, err error) error {
	if len(name) > 256 {
		name = name[:256] + "…"
	}
	return fmt.Errorf("entry %q: %w", name, err)
}

// Written returns how many bytes of files were written.
func (t *Tree) Written() int64 { return t.written }

// applyEntry applies one entry; content is the content of its file. inLayer says whether there are whiteouts. Entries of devices are skipped, because a
// container's devices never come from its image, and to overlayfs the node 0:0 is a whiteout. The entry of
// the root is skipped too.
func (t *Tree) applyEntry(h *tar.Header, content io.Reader, inLayer bool) error {
	name := CleanName(h.Name)
	switch h.Typeflag {
	case tar.TypeXGlobalHeader, tar.TypeChar, tar.TypeBlock:
		return nil
	}
	if name == "" {
		return nil
	}
	dir, base := splitPath(name)
	if err := t.enterDirectory(dir); err != nil {
		return err
	}
	if inLayer && strings.HasPrefix(base, whiteout) {
		return t.applyWhiteout(base)
	}
	return t.replaceEntry(h, name, base, content)
}

// CleanName returns a name relative to the root, without ".." elements.
func CleanName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func splitPath(name string) (dir, base string) {
	dir, base = path.Split(name)
	return strings.TrimSuffix(dir, "/"), base
}

// enterDirectory makes dir the current parent, and creates it if it is missing.
func (t *Tree) enterDirectory(dir string) error {
	if t.parent >= 0 && dir == t.parentPath {
		return nil
	}
	t.closeParent()
	fd, err := t.openParent(dir, maxLinks)
	if err != nil {
		return err
	}
	t.parent, t.parentPath = fd, dir
	return nil
}

// maxLinks is how many links to missing directories are followed.
const maxLinks = 40

func (t *Tree) openParent(dir string, links int) (int, error) {
	fd, err := openDir(t.root, dir, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	above, base := splitPath(dir)
	at, err := t.openParent(above, links)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(at) }() // O_PATH
	err = unix.Mkdirat(at, base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		return t.followLink(at, above, base, links)
	}
	if err == nil {
		err = t.countSize(0)
	}
	if err != nil {
		return -1, err
	}
	if err := t.boundNames(dir); err != nil {
		return -1, err
	}
	t.implied[dir] = true
	return openDir(at, base, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

// followLink creates and opens the missing directory that a link leads to.
func (t *Tree) followLink(at int, above, base string, links int) (int, error) {
	var target [unix.PathMax]byte
	n, err := unix.Readlinkat(at, base, target[:])
	if err != nil {
		return -1, unix.ENOTDIR
	}
	if links == 0 {
		return -1, unix.ELOOP
	}
	to := string(target[:n])
	if !path.IsAbs(to) {
		to = above + "/" + to
	}
	return t.openParent(CleanName(to), links-1)
}

// openDir opens a directory with O_PATH. The name "" means at itself.
func openDir(at int, name string, resolve uint64) (int, error) {
	if name == "" {
		name = "."
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(at, name, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// applyWhiteout applies a whiteout, which hides files of the layers below. Files of this layer stay.
func (t *Tree) applyWhiteout(base string) error {
	if base == opaque {
		return setOpaque(fdPath(t.parent) + "/.")
	}
	if strings.HasPrefix(base, reserved) {
		return nil // metadata of aufs
	}
	name := strings.TrimPrefix(base, whiteout)
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("whiteout %q hides no name", base)
	}
	err := unix.Mknodat(t.parent, name, unix.S_IFCHR, 0)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if kind, err := t.fileType(name); err != nil || kind != unix.S_IFDIR {
		return err
	}
	return setOpaque(fdPath(t.parent) + "/" + name)
}

func setOpaque(path string) error {
	return unix.Lsetxattr(path, overlay.OpaqueAttribute(), []byte{'y'}, 0)
}

// fdPath returns a path of the file that a descriptor has open.
func fdPath(fd int) string {
	if fd == unix.AT_FDCWD {
		return "."
	}
	return "/proc/self/fd/" + strconv.Itoa(fd)
}

// fileType returns the file type of a name in the current parent, without following a link.
func (t *Tree) fileType(base string) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(t.parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, err
	}
	return st.Mode & unix.S_IFMT, nil
}

// replaceEntry creates a file, directory, link or FIFO, and replaces an existing one. A directory doesn't
// replace a directory, but gets the attributes of the entry.
func (t *Tree) replaceEntry(h *tar.Header, name, base string, content io.Reader) error {
	err := t.createEntry(h, name, base, content)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	kind, err := t.fileType(base)
	if err != nil {
		return err
	}
	if kind == unix.S_IFDIR && h.Typeflag == tar.TypeDir {
		return t.describeDirectory(h, name, base)
	}
	t.forgetName(name)
	if err := os.RemoveAll(fdPath(t.parent) + "/" + base); err != nil {
		return err
	}
	if err := t.createEntry(h, name, base, content); err != nil {
		return err
	}
	if kind == unix.S_IFCHR && h.Typeflag == tar.TypeDir {
		return setOpaque(fdPath(t.parent) + "/" + base) // the directory replaces a whiteout, so it hides those below
	}
	return nil
}

// forgetName drops the directory of a name that is being replaced.
func (t *Tree) forgetName(name string) {
	delete(t.implied, name)
	delete(t.described, name)
}

func (t *Tree) createEntry(h *tar.Header, name, base string, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return t.writeFile(h, base, content)
	case tar.TypeDir:
		if err := unix.Mkdirat(t.parent, base, 0o700); err != nil {
			return err
		}
		return t.describeDirectory(h, name, base)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, t.parent, base); err != nil {
			return err
		}
		return t.setAttributes(h, base)
	case tar.TypeFifo:
		if err := unix.Mknodat(t.parent, base, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		return t.setAttributes(h, base)
	case tar.TypeLink:
		return t.createLink(h, base)
	}
	return fmt.Errorf("entries of type %q are not known", h.Typeflag)
}

// createLink creates a hard link to a file of this layer. The target may be a symbolic link, which isn't
// followed.
func (t *Tree) createLink(h *tar.Header, base string) error {
	dir, target := splitPath(CleanName(h.Linkname))
	from, err := openDir(t.root, dir, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return fmt.Errorf("link to %q: %w", h.Linkname, err)
	}
	defer func() { _ = unix.Close(from) }() // O_PATH
	if err := unix.Linkat(from, target, t.parent, base, 0); err != nil {
		return fmt.Errorf("link to %q: %w", h.Linkname, err)
	}
	return nil
}

// describeDirectory sets a directory's attributes. Finish sets its times.
func (t *Tree) describeDirectory(h *tar.Header, name, base string) error {
	delete(t.implied, name)
	if err := t.boundNames(name); err != nil {
		return err
	}
	t.described[name] = h.ModTime
	return t.setAttributes(h, base)
}
