package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Write makes config.json say what spec says, which comes from [Bundle.Spec]. A
// spec without a change leaves the original in place, or puts it back. The
// caller holds the lock.
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

// keepOriginal gives the original its second name, if it hasn't it already. Killed after
// it, we leave one original under two names. A file system that knows no hard
// links gets a copy.
func (b *Bundle) keepOriginal() error {
	if b.orig != b.now {
		return nil
	}
	if err := b.removeFile(b.name + keptSuffix); err != nil { // of an earlier original
		return err
	}
	dir := int(b.dir.Fd())
	if unix.Linkat(dir, b.name, dir, b.name+keptSuffix, 0) == nil {
		return nil
	}
	return b.replaceFile(b.name+keptSuffix, b.orig.raw)
}

// replaceFile writes a file with the original's mode and owner and renames it to name.
func (b *Bundle) replaceFile(name string, data []byte) error {
	temp := b.name + tempSuffix
	if err := b.removeFile(temp); err != nil { // what a killed process left
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

// ownAs gives the file an owner. Who isn't root keeps what can't be given away.
func ownAs(fd int, st *unix.Stat_t) error {
	err := unix.Fchown(fd, int(st.Uid), int(st.Gid))
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

// Restore puts the original back. It is idempotent; a config.json that isn't
// what berth wrote stays, and the outdated copy beside it goes.
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

// HasOriginal says whether a bundle has a kept original, without opening it.
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
