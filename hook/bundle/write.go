package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Write writes a spec that comes from [Bundle.Spec] into config.json. A spec without a
// change restores the original. The caller holds the lock.
func (b *Bundle) Write(spec *specs.Spec) error {
	edited, err := b.orig.Edit(spec)
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", b.path, err)
	}
	if edited == b.orig {
		return b.Restore()
	}
	doc := b.orig.sealEdited(edited)
	err = b.keepOriginal()
	if err == nil {
		err = b.replaceFile(b.name, doc.raw)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("rewrite %s: %w", b.path, err), b.removeFile(b.name+tempSuffix))
	}
	b.now = doc
	return nil
}

// keepOriginal gives the original its second name, unless it has it already. A process
// that is killed after it leaves one original with two names. A file system without hard
// links gets a copy.
func (b *Bundle) keepOriginal() error {
	if b.orig != b.now {
		return nil
	}
	if err := b.removeFile(b.name + keptSuffix); err != nil { // an outdated original
		return err
	}
	dir := int(b.dir.Fd())
	if unix.Linkat(dir, b.name, dir, b.name+keptSuffix, 0) == nil {
		return nil
	}
	return b.replaceFile(b.name+keptSuffix, b.orig.raw)
}

// replaceFile writes a file with the original's mode and owner, and renames it to name.
func (b *Bundle) replaceFile(name string, data []byte) error {
	temp := b.name + tempSuffix
	if err := b.removeFile(temp); err != nil { // left by a killed process
		return err
	}
	if err := b.writeFile(temp, data); err != nil {
		return err
	}
	return unix.Renameat(int(b.dir.Fd()), temp, int(b.dir.Fd()), name)
}

func (b *Bundle) writeFile(name string, data []byte) (err error) {
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(b.dir.Fd()), name, flags, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := ownAs(fd, b.info); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, b.info.Mode&0o7777); err != nil {
		return err
	}
	_, err = f.Write(data)
	return err
}

// ownAs gives the file the owner in st. A process that is not root cannot, and keeps its
// own.
func ownAs(fd int, st *unix.Stat_t) error {
	err := unix.Fchown(fd, int(st.Uid), int(st.Gid))
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

// Restore restores the original. It is idempotent. A config.json that is not what berth
// has written stays, and the outdated original beside it is removed.
func (b *Bundle) Restore() error {
	err := b.removeFile(b.name + tempSuffix)
	if b.orig != b.now {
		dir := int(b.dir.Fd())
		err = errors.Join(err, unix.Renameat(dir, b.name+keptSuffix, dir, b.name))
	} else {
		err = errors.Join(err, b.removeFile(b.name+keptSuffix))
	}
	if err != nil {
		return fmt.Errorf("put back %s: %w", b.path, err)
	}
	b.now = b.orig
	return nil
}

// HasOriginal reports whether a bundle has a kept original, without opening it.
func HasOriginal(dir string) bool {
	_, err := os.Lstat(dir + "/config.json" + keptSuffix)
	return err == nil
}

func (b *Bundle) removeFile(name string) error {
	err := unix.Unlinkat(int(b.dir.Fd()), name, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
