package image

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// files are the untrusted files of an image on this machine, by name. Names are resolved inside the image,
// and only regular files are read.
type files interface {
	// read returns a small file.
	read(name string) ([]byte, error)
	// open opens a file of any size. digest is the digest that the file is said to have.
	open(name, digest string) (source, error)
	close()
}

// directory is the path of a directory with the files.
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

// fileProof returns a source.proof of a file's content: device, inode, size and change time. A change time
// can't be set, so a file whose content has changed has another proof. It is "" on errors.
func fileProof(f *os.File, digest string, offset int64) string {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d %d %d.%09d %d", digest, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec, offset)
}

// openSection returns a part of an open file, which stays open.
func openSection(f *os.File, at, size int64, digest string) source {
	r := io.NewSectionReader(f, at, size)
	return source{read: r.Read, close: func() {}, proof: fileProof(f, digest, at)}
}
