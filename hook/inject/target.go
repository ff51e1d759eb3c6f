package inject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// checkWritable returns an error unless files may be created in a directory: it has to
// be in the container's root file system, or in one that the host has not mounted, such
// as the tmpfs at /dev.
func (s *openContainer) checkWritable(dir *os.File) error {
	id, _, err := mountOfFile(dir)
	if err != nil {
		return err
	}
	switch {
	case id == s.rootID && !s.isHosts:
		return nil
	case id == s.rootID:
		return fmt.Errorf("%s: the container's root is the host's", dir.Name())
	}
	if err := s.readMounts(); err != nil {
		return err
	}
	if system, known := s.mounted[id]; !known || s.hosts[system] {
		return fmt.Errorf("%s is on a file system of the host", dir.Name())
	}
	return nil
}

// openDir opens the directory at name below the root, and creates what is missing of it.
func (s *openContainer) openDir(name string) (*os.File, error) {
	f, err := inroot.Open(s.root, name, unix.O_DIRECTORY)
	if !errors.Is(err, fs.ErrNotExist) || name == "/" {
		return f, err
	}
	parent, err := s.openDir(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close() // an O_PATH descriptor
	if err := s.checkWritable(parent); err != nil {
		return nil, err
	}
	if err := s.createAsRoot(func() error { return inroot.Mkdir(parent, path.Base(name), 0o755) }); err != nil {
		return nil, err
	}
	return inroot.Open(parent, path.Base(name), unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

// openTarget opens the target of a mount, and creates it if it is missing. Links are
// followed below the root, as runtimes do.
func (s *openContainer) openTarget(name string, isDir bool) (*os.File, error) {
	name = path.Clean(name)
	f, err := inroot.Open(s.root, name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s.createTarget(name, isDir)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() != isDir {
		err = errors.New("the image has a directory where a file is to be mounted, or a file for a directory")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *openContainer) createTarget(name string, isDir bool) (*os.File, error) {
	if isDir {
		return s.openDir(name)
	}
	parent, err := s.openDir(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close() // an O_PATH descriptor
	if err := s.checkWritable(parent); err != nil {
		return nil, err
	}
	if err := s.createFile(parent, path.Base(name)); err != nil {
		return nil, err
	}
	return inroot.Open(parent, path.Base(name), unix.O_NOFOLLOW)
}

// createFile creates an empty file, which must not exist.
func (s *openContainer) createFile(dir *os.File, name string) error {
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_WRONLY | unix.O_CLOEXEC
	return s.createAsRoot(func() error {
		fd, err := unix.Openat(int(dir.Fd()), name, flags, 0o644)
		if err != nil {
			return &fs.PathError{Op: "make", Path: name + " in " + dir.Name(), Err: err}
		}
		return unix.Close(fd)
	})
}

// createAsRoot calls create. If the file system was mounted in the container's user
// namespace and does not know the host's root, it calls create again with the ids of the
// container's root. This thread has its file system ids to itself.
func (s *openContainer) createAsRoot(create func() error) error {
	err := create()
	if !s.userNS || !errors.Is(err, unix.EOVERFLOW) {
		return err
	}
	ids, err := rootIDs(s.Proc, s.PID)
	if err != nil {
		return err
	}
	for i, set := range []func(int) (int, error){unix.SetfsgidRetGid, unix.SetfsuidRetUid} {
		if _, err := set(ids[i]); err != nil {
			return fmt.Errorf("create files as id %d: %w", ids[i], err)
		}
		defer func() { _, _ = set(0) }() // cannot fail: it is the former id
	}
	return create()
}

// rootIDs returns the host's ids of the group and the user that are 0 in the user
// namespace of a process. Source: user_namespaces(7).
func rootIDs(proc string, pid int) (ids [2]int, err error) {
	for i, name := range []string{"gid_map", "uid_map"} {
		path := fmt.Sprintf("%s/%d/%s", proc, pid, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return ids, err
		}
		found := false
		for line := range strings.Lines(string(data)) {
			var inside, outside, size int
			if _, err := fmt.Sscan(line, &inside, &outside, &size); err == nil && inside == 0 && size > 0 {
				ids[i], found = outside, true
			}
		}
		if !found {
			return ids, fmt.Errorf("%s: the container has no root", path)
		}
	}
	return ids, nil
}
