package inroot

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Owner is the owner of a new file.
type Owner struct{ UID, GID uint32 }

// OwnerOf reads the owner of an open file.
func OwnerOf(f *os.File) (Owner, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Owner{}, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return Owner{st.Uid, st.Gid}, nil
}

// Replace atomically replaces the file of this name in the open directory, with exactly these permission bits. An
// existing file is neither followed nor opened; a directory isn't replaced. name must be a single path element.
func Replace(dir *os.File, name string, data []byte, mode fs.FileMode, o Owner) (err error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return &fs.PathError{Op: "replace", Path: name, Err: unix.EINVAL}
	}
	temp := "." + name + "." + rand.Text()[:12]
	f, err := createFile(dir, temp)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err == nil {
			err = wrapError("rename", dir, name, unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), name))
		}
		if err != nil {
			err = errors.Join(err, ignoreMissing(unix.Unlinkat(int(dir.Fd()), temp, 0)))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return setOwner(f, mode, o)
}

// Mkdir creates a directory in the open one. An existing name is not an error, whatever its type.
func Mkdir(dir *os.File, name string, mode fs.FileMode) error {
	err := unix.Mkdirat(int(dir.Fd()), name, uint32(mode.Perm()))
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return wrapError("make directory", dir, name, err)
}

// MakeDir opens the directory of this name in the open one with O_PATH, and makes it if it is missing. A link is not followed: it is an
// error, as is a file. name must be a single path element.
func MakeDir(dir *os.File, name string, mode fs.FileMode) (*os.File, error) {
	err := unix.Mkdirat(int(dir.Fd()), name, modeBits(mode))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, wrapError("make directory", dir, name, err)
	}
	return Open(dir, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

func modeBits(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}

func createFile(dir *os.File, name string) (*os.File, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retryInterrupted(func() (int, error) { return unix.Openat(int(dir.Fd()), name, flags, 0o600) })
	if err != nil {
		return nil, wrapError("create", dir, name, err)
	}
	return os.NewFile(uintptr(fd), name+" in "+dir.Name()), nil
}

func setOwner(f *os.File, mode fs.FileMode, o Owner) error {
	if (o != Owner{uint32(os.Geteuid()), uint32(os.Getegid())}) {
		// A process that may not change owners keeps the file: it is still readable.
		if err := f.Chown(int(o.UID), int(o.GID)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return f.Chmod(mode.Perm())
}

func wrapError(op string, dir *os.File, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name + " in " + dir.Name(), Err: err}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
