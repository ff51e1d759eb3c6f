package driver

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrDamaged means that a directory was changed after [Build] created it.
var ErrDamaged = errors.New("driver directory is damaged")

// sealOf identifies the files of a view's manifest, which are at path: their inodes, sizes and times
// of the last change, and those of the directories. Each write to a file, and each change of a name
// or an attribute, changes the ctime, which can only be forged by setting the machine's clock. A new
// hard link changes it too, so all views are created before the first is sealed. Symbolic links are
// left out: they can't be changed, and replacing one changes the directory.
func (m manifest) sealOf(path string) (string, error) {
	dir, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(dir) }() // only an O_PATH descriptor
	s := states{dir: dir, path: path, data: make([]byte, 0, 32*(8+len(m.Libraries)+len(m.Programs)+len(m.Extras)))}
	for _, name := range m.viewDirectories() {
		s.addState(name)
	}
	for _, l := range m.Libraries {
		s.addState(l.File)
	}
	for _, p := range m.Programs {
		s.addState("bin/" + p)
	}
	for _, e := range m.Extras {
		s.addState("../../" + extrasName + "/" + e.File)
	}
	sum := sha256.Sum256(s.data)
	return hex.EncodeToString(sum[:]), s.err
}

// states are attributes of files below a directory.
type states struct {
	dir  int
	path string
	data []byte
	err  error // the first
}

func (s *states) addState(name string) {
	if s.err != nil {
		return
	}
	var st unix.Stat_t
	if err := unix.Fstatat(s.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		s.err = &fs.PathError{Op: "stat", Path: filepath.Join(s.path, name), Err: err}
		return
	}
	for _, n := range []uint64{st.Ino, uint64(st.Mode), uint64(st.Size), uint64(st.Ctim.Nano())} {
		s.data = binary.LittleEndian.AppendUint64(s.data, n)
	}
}

// viewDirectories are the directories of a view.
func (m manifest) viewDirectories() []string {
	dirs := []string{".", "bin", LibDir(64)}
	if slices.ContainsFunc(m.Libraries, func(l Library) bool { return l.Bits == 32 }) {
		dirs = append(dirs, LibDir(32))
	}
	return dirs
}

// checkFiles returns an error unless the files at path are unchanged since the manifest was written.
func (m manifest) checkFiles(path string) error {
	seal, err := m.sealOf(path)
	if err == nil && seal != m.Seal {
		err = fmt.Errorf("something in %s was changed since it was made", path)
	}
	return err
}
