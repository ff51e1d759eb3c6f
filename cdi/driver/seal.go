package driver

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrDamaged: a directory isn't as [Build] made it.
var ErrDamaged = errors.New("driver directory is damaged")

// sealOf identifies the files of a manifest, which are at path: their inodes, sizes
// and times of the last change, and those of the directories. Whoever writes to a
// file, or changes a name or an attribute, changes such a time, and nobody can set
// it but by setting the machine's clock. Links need no part in it, for one can't be
// changed, only replaced.
func (m manifest) sealOf(path string) (string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer dir.Close() // only read from
	var data []byte
	for _, name := range []string{".", "bin", LibDir(32), LibDir(64)} {
		if data, err = appendState(data, dir, name); err != nil && (name != LibDir(32) || !errors.Is(err, fs.ErrNotExist)) {
			return "", err
		}
	}
	for _, l := range m.Libraries {
		if data, err = appendState(data, dir, l.File); err != nil {
			return "", err
		}
	}
	for _, p := range m.Programs {
		if data, err = appendState(data, dir, "bin/"+p.Name); err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

func appendState(data []byte, dir *os.File, name string) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return data, &fs.PathError{Op: "stat", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	for _, n := range []uint64{st.Ino, uint64(st.Mode), uint64(st.Size), uint64(st.Ctim.Nano())} {
		data = binary.LittleEndian.AppendUint64(data, n)
	}
	return data, nil
}

// check says whether the files at path are still those that the manifest was made of.
func (m manifest) check(path string) error {
	seal, err := m.sealOf(path)
	if err == nil && seal != m.Seal {
		err = fmt.Errorf("something in %s was changed since it was made", path)
	}
	return err
}
