package image

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// files are what an image on this machine consists of, by name. Strangers wrote
// them: names lead nowhere outside, and what is no regular file isn't read.
type files interface {
	// read returns a small file.
	read(name string) ([]byte, error)
	// open begins to read a file of any size. digest is what it is said to be.
	open(name, digest string) (source, error)
	close()
}

// directory has its files below a path.
type directory string

func (d directory) close() {}

func (d directory) read(name string) ([]byte, error) {
	root, err := inroot.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer root.Close() // an O_PATH descriptor
	data, err := inroot.ReadFile(root, name, maxJSON)
	return data, err
}

func (d directory) open(name, digest string) (source, error) {
	root, err := inroot.OpenRoot(string(d))
	if err != nil {
		return source{}, err
	}
	defer root.Close() // an O_PATH descriptor
	f, err := inroot.OpenFile(root, name)
	if err != nil {
		return source{}, err
	}
	return source{read: f.Read, close: func() { f.Close() }, proof: fileProof(f, digest, 0)}, nil
}

// fileProof names a file by what changes when it does: a file's change time can't be
// set, so no other file of its file system has the same.
func fileProof(f *os.File, digest string, offset int64) string {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d %d %d.%09d %d", digest, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec, offset)
}

// openSection is a part of an open file, which stays open.
func openSection(f *os.File, at, size int64, digest string) source {
	r := io.NewSectionReader(f, at, size)
	return source{read: r.Read, close: func() {}, proof: fileProof(f, digest, at)}
}
