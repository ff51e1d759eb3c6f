package inject

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/mounttree"
)

// mountSource attaches a source at its destination below the root.
func (s *openContainer) mountSource(src mounttree.Bind) error {
	at, err := s.openTarget(src.Destination, src.IsDir)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Attach(src.Tree, at)
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
