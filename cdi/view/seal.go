package view

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// sealLimit is far above a view of all devices of a node.
const sealLimit = 1 << 20

// seal describes a view at the time of its creation.
type seal struct {
	digest  string
	devices []string
	paths   []string
}

func readSeal(dir string) (seal, error) {
	data, err := smallfile.Read(filepath.Join(dir, sealName), sealLimit)
	if err != nil {
		return seal{}, err
	}
	lines := strings.Split(string(data), "\n")
	if len(lines) < 3 {
		return seal{}, errors.New("seal is too short")
	}
	return seal{digest: lines[0], devices: strings.Fields(lines[1]), paths: lines[2:]}, nil
}

// checkView returns an error unless the view is unchanged since its creation. It compares file
// attributes only; they can be forged only by setting the machine's clock.
func checkView(dir string) error {
	s, err := readSeal(dir)
	if err != nil {
		return err
	}
	now, err := digestTree(filepath.Join(dir, treeName), s.paths)
	if err != nil {
		return err
	}
	if now != s.digest {
		return fmt.Errorf("%s was changed since it was made", dir)
	}
	return nil
}

// digestTree returns a digest of the paths below root: inodes, sizes, owners, modes and times of
// the last change. A new entry of a directory changes the directory's time.
func digestTree(root string, paths []string) (string, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	var data []byte
	for _, name := range paths {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return "", &fs.PathError{Op: "stat", Path: filepath.Join(root, name), Err: err}
		}
		owner := uint64(st.Uid)<<32 | uint64(st.Gid)
		for _, n := range []uint64{st.Ino, uint64(st.Mode), owner, uint64(st.Size), uint64(st.Ctim.Nano())} {
			data = binary.LittleEndian.AppendUint64(data, n)
		}
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
