package layertree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
)

// writeFile writes a regular file and gives it its attributes.
func (t *Tree) writeFile(h *tar.Header, base string, content io.Reader) (err error) {
	fd, err := unix.Openat(t.parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := t.copyContent(fd, content); err != nil {
		return err
	}
	uid, gid, err := checkOwner(h)
	if err != nil {
		return err
	}
	if err := ignoreUnmapped(unix.Fchown(fd, uid, gid)); err != nil {
		return err
	}
	// Attributes are set after the owner: a change of owner removes file capabilities.
	if err := setAttrs(h, func(name string, value []byte) error { return unix.Fsetxattr(fd, name, value, 0) }); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, permissions(h)); err != nil {
		return err
	}
	at := boundTime(h.ModTime)
	return unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(fd), []unix.Timespec{at, at}, 0)
}

// copyContent writes a file's content and leaves holes for blocks of zeros. Otherwise a sparse entry of a few
// bytes could fill the disk.
func (t *Tree) copyContent(fd int, content io.Reader) error {
	for size := int64(0); ; {
		n, err := fillBuffer(content, t.buf)
		if err := writeBlocks(fd, t.buf[:n], size); err != nil {
			return err
		}
		size += int64(n)
		t.written += int64(n)
		if err == io.EOF { //nolint:errorlint // io.ErrUnexpectedEOF of a truncated stream isn't the end
			return unix.Ftruncate(fd, size) // the end may be a hole
		}
		if err != nil {
			return err
		}
	}
}

// fillBuffer reads until the buffer is full or the reader returns an error. At the end the error is io.EOF,
// also if n > 0.
func fillBuffer(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var more int
		more, err = r.Read(buf[n:])
		n += more
	}
	return n, err
}

// writeBlocks writes the blocks of data that aren't zeros.
func writeBlocks(fd int, data []byte, offset int64) error {
	const blockSize = 4096
	for start := 0; start < len(data); {
		stop, zero := start, false
		for stop < len(data) && !zero {
			next := min(stop+blockSize, len(data))
			if zero = isZero(data[stop:next]); !zero {
				stop = next
			}
		}
		if err := writeAt(fd, data[start:stop], offset+int64(start)); err != nil {
			return err
		}
		start = stop
		if zero {
			start = min(stop+blockSize, len(data))
		}
	}
	return nil
}

// isZero reports whether all bytes of a block are zero: the first is, and each is like the one before.
func isZero(data []byte) bool {
	return data[0] == 0 && bytes.Equal(data[1:], data[:len(data)-1])
}

func writeAt(fd int, data []byte, offset int64) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(fd, data, offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		data, offset = data[n:], offset+int64(n)
	}
	return nil
}

// setAttributes sets owner, extended attributes, permissions and times of an entry without content.
func (t *Tree) setAttributes(h *tar.Header, base string) error {
	uid, gid, err := checkOwner(h)
	if err != nil {
		return err
	}
	if err := ignoreUnmapped(unix.Fchownat(t.parent, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return err
	}
	path := fdPath(t.parent) + "/" + base
	if err := setAttrs(h, func(name string, value []byte) error { return unix.Lsetxattr(path, name, value, 0) }); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink { // a link has no permissions, and Fchmodat would follow it
		if err := unix.Fchmodat(t.parent, base, permissions(h), 0); err != nil {
			return err
		}
	}
	at := boundTime(h.ModTime)
	return unix.UtimesNanoAt(t.parent, base, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// checkOwner returns the owner of an entry. The highest number is an error: to the kernel it means "do not
// change".
func checkOwner(h *tar.Header) (uid, gid int, err error) {
	const most = 1<<32 - 2
	if h.Uid < 0 || h.Gid < 0 || h.Uid > most || h.Gid > most {
		return 0, 0, fmt.Errorf("owner %d:%d is invalid", h.Uid, h.Gid)
	}
	return h.Uid, h.Gid, nil
}

// ignoreUnmapped returns the error of a change of owner, nil if a user namespace doesn't have the owner: then the file
// stays the user's own.
func ignoreUnmapped(err error) error {
	if errors.Is(err, unix.EINVAL) && userns.IsInside() {
		return nil
	}
	return err
}

func permissions(h *tar.Header) uint32 { return uint32(h.Mode & 0o7777) } //nolint:gosec // twelve bits

// boundTime returns a time that every file system can store: times out of range become 0.
func boundTime(t time.Time) unix.Timespec {
	if t.Before(time.Unix(0, 0)) || t.After(time.Unix(1<<33, 0)) {
		t = time.Unix(0, 0)
	}
	return unix.NsecToTimespec(t.UnixNano())
}

// attrPrefix begins the PAX records of extended attributes.
const attrPrefix = "SCHILY.xattr."

// setAttrs sets the extended attributes of an entry, except those that overlayfs interprets. Attributes that
// the file system doesn't support are skipped, as in other engines.
func setAttrs(h *tar.Header, set func(name string, value []byte) error) error {
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, attrPrefix)
		if !ok || strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		err := set(name, []byte(value))
		misplaced := errors.Is(err, unix.EPERM) && strings.HasPrefix(name, "user.") // links and FIFOs can't have them
		if err != nil && !misplaced && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set attribute %q: %w", name, err)
		}
	}
	return nil
}

// Finish completes the unpacking. Directories that the layer doesn't describe get the attributes that they
// have in the layers below, topmost first, and all directories get their times.
func (t *Tree) Finish(below []string) error {
	t.closeParent()
	var lower []int
	for _, dir := range below {
		fd, err := openDir(unix.AT_FDCWD, dir, 0)
		if err != nil {
			return fmt.Errorf("open layer below %s: %w", dir, err)
		}
		defer func() { _ = unix.Close(fd) }() // O_PATH
		lower = append(lower, fd)
	}
	for _, name := range slices.Sorted(maps.Keys(t.implied)) {
		if err := t.inheritAttributes(name, lower); err != nil {
			return nameEntry(name, err)
		}
	}
	for name, at := range t.described {
		ts := boundTime(at)
		if err := t.setTimes(name, []unix.Timespec{ts, ts}); err != nil {
			return nameEntry(name, err)
		}
	}
	return nil
}

// setTimes sets a directory's times, unless the directory was replaced by another file.
func (t *Tree) setTimes(name string, times []unix.Timespec) error {
	fd, err := openDir(t.root, name, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	return unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(fd), times, 0)
}

// isGone reports whether an error means that a directory, or one above it, was removed or replaced.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// inheritAttributes copies the attributes of the directory of the same name in the topmost layer that has it.
func (t *Tree) inheritAttributes(name string, lower []int) error {
	own, err := openDir(t.root, name, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(own) }() // O_PATH
	for _, root := range lower {
		from, err := openDir(root, name, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil //nolint:nilerr // not a directory there: nothing to inherit
		}
		err = copyAttributes(own, from)
		return errors.Join(err, unix.Close(from))
	}
	return nil
}

func copyAttributes(to, from int) error {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	dir := fdPath(to)
	if err := ignoreUnmapped(os.Lchown(dir+"/.", int(st.Uid), int(st.Gid))); err != nil {
		return err
	}
	if err := copyAttrs(dir, fdPath(from)); err != nil {
		return err
	}
	if err := unix.Chmod(dir, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// maxAttr is the kernel's limit for an attribute, or a list of names, in bytes.
const maxAttr = 64 << 10

func copyAttrs(to, from string) error {
	buf := make([]byte, maxAttr)
	n, err := unix.Listxattr(from, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.Trim(string(buf[:n]), "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.") {
			continue
		}
		n, err := unix.Getxattr(from, name, buf)
		if err != nil {
			return fmt.Errorf("read attribute %q: %w", name, err)
		}
		if err := unix.Setxattr(to, name, buf[:n], 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set attribute %q: %w", name, err)
		}
	}
	return nil
}
