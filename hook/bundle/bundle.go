// Package bundle reads and rewrites the config.json of an OCI bundle.
//
// A [Document] is the pure part. It decodes the sections that berth reads, carries all
// others byte for byte, and refuses what two parsers could read differently. A [Bundle]
// is the directory. It writes config.json by a temporary file and a rename, keeps the
// original beside it as config.json.berth (a hard link, so with its mode, owner and
// bytes), and restores it.
//
// The package does not decide about devices. The path of a bundle is trusted, as the engine is that
// owns it. Annotations and environment, which may come from an untrusted image, are data of the
// document.
//
// A process that is killed leaves a usable bundle at every moment: config.json is the
// original or a complete rewritten file, and the next Open starts from the original.
package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/runtimestate"
	"github.com/berth-gpu/berth/internal/smallfile"
)

const (
	// keptSuffix is appended to the name of a rewritten file to name its original.
	keptSuffix = ".berth"
	tempSuffix = ".berth-new"
)

// Bundle is an open bundle directory. It isn't safe for concurrent use.
type Bundle struct {
	path string // of config.json, for messages
	dir  *os.File
	name string
	now  *Document    // config.json as it is
	orig *Document    // the original; the same document as now unless berth has rewritten it
	info *unix.Stat_t // of orig
	read [2]stamp     // of config.json and the kept original, taken before they were read
}

// stamp identifies the state of a file: it changes when the file is replaced or written
// to.
type stamp struct{ ino, size, sec, nsec int64 }

// Open reads the bundle in dir. config is the path of its configuration, "" for
// dir/config.json. Symbolic links to the directory and to the file are followed for
// reading, as runtimes do. If config.json is a link, Write and Restore replace and
// restore the link; the file that it points to is never written.
//
// If config.json is exactly what berth has written, [Bundle.Spec] returns the kept
// original. If anything has written it since, config.json counts as a new original.
func Open(dir, config string) (*Bundle, error) {
	if config == "" {
		config = filepath.Join(dir, "config.json")
	}
	parent, name := filepath.Split(config)
	d, err := unix.Open(cmp.Or(parent, "."), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open bundle %s: there is no such directory", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", dir, err)
	}
	b := &Bundle{path: config, dir: os.NewFile(uintptr(d), parent), name: name}
	if err := b.readFiles(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bundle) readFiles() error {
	b.read = b.readStamps()
	data, info, err := b.readFile(b.name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read bundle: %s is missing", b.path)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", b.path, err)
	}
	kept, keptInfo, err := b.readFile(b.name + keptSuffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s%s: %w", b.path, keptSuffix, err)
	}
	if err == nil && len(data) == 0 {
		return b.useOriginal(kept, keptInfo)
	}
	if b.now, err = Parse(data); err != nil {
		return fmt.Errorf("read %s: %w", b.path, err)
	}
	b.orig, b.info = b.now, info
	if keptInfo == nil || (info.Dev == keptInfo.Dev && info.Ino == keptInfo.Ino) {
		return nil
	}
	if orig, err := Parse(kept); err == nil && b.now.isSealedFrom(orig) {
		b.orig, b.info = orig, keptInfo
	}
	return nil
}

// useOriginal takes the kept original for an empty config.json: the machine went down
// before the rewritten file reached the disk.
func (b *Bundle) useOriginal(kept []byte, info *unix.Stat_t) (err error) {
	if b.orig, err = Parse(kept); err != nil {
		return fmt.Errorf("read %s%s: %w", b.path, keptSuffix, err)
	}
	b.now, b.info = &Document{view: []byte("{}")}, info
	return nil
}

// readFile returns the content of a regular file of limited size. It does not use
// os.File, which would register the descriptor for polling first.
func (b *Bundle) readFile(name string) (data []byte, info *unix.Stat_t, err error) {
	fd, err := unix.Openat(int(b.dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	info = new(unix.Stat_t)
	if err = unix.Fstat(fd, info); err != nil {
		return nil, nil, err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, errors.New("not a regular file")
	}
	data, err = smallfile.ReadFD(fd, info.Size, runtimestate.MaxSpec)
	if errors.Is(err, smallfile.ErrTooLarge) {
		return nil, nil, fmt.Errorf("more than the limit of %d bytes", runtimestate.MaxSpec)
	}
	return data, info, err
}

// Spec decodes the original, as [Document.Spec] does.
func (b *Bundle) Spec() (*specs.Spec, error) { return b.orig.Spec() }

// PartialSpec decodes a part of the original, as [Document.PartialSpec] does.
func (b *Bundle) PartialSpec() (*specs.Spec, error) { return b.orig.PartialSpec() }

// RootPath is the path of the root file system that the runtime reads, "" if there is
// none.
func (b *Bundle) RootPath() (string, error) { return b.now.rootPath() }

// RewrittenSpec returns the spec that berth has written into the bundle, nil if
// config.json is an original.
func (b *Bundle) RewrittenSpec() (*specs.Spec, error) {
	if b.orig == b.now {
		return nil, nil
	}
	return b.now.Spec()
}

// RewrittenAnnotations returns the annotations of the spec that berth has written into
// the bundle, nil if config.json is an original.
func (b *Bundle) RewrittenAnnotations() (map[string]string, error) {
	if b.orig == b.now {
		return nil, nil
	}
	return b.now.annotations()
}

// Lock waits until no other process of berth changes this bundle. If the bundle has
// changed since it was read, Lock reads it again and reports that. The lock ends with
// Close, with an exec and with the process.
func (b *Bundle) Lock() (changed bool, err error) {
	if err := lock.Acquire(context.Background(), int(b.dir.Fd()), lock.Exclusive); err != nil {
		return false, fmt.Errorf("lock bundle of %s: %w", b.path, err)
	}
	if b.readStamps() == b.read {
		return false, nil
	}
	return true, b.readFiles()
}

// readStamps returns the stamps of both files, zero for a missing one.
func (b *Bundle) readStamps() (s [2]stamp) {
	for i, name := range []string{b.name, b.name + keptSuffix} {
		var st unix.Stat_t
		if unix.Fstatat(int(b.dir.Fd()), name, &st, 0) == nil {
			s[i].ino, s[i].size = int64(st.Ino), st.Size
			s[i].sec, s[i].nsec = int64(st.Ctim.Sec), int64(st.Ctim.Nsec) //nolint:unconvert // 32 bits on some machines
		}
	}
	return s
}

// IsRemoved reports whether the open directory has been removed from the file system.
func (b *Bundle) IsRemoved() bool {
	var st unix.Stat_t
	return unix.Fstat(int(b.dir.Fd()), &st) == nil && st.Nlink == 0
}

// Close closes the directory, which ends the lock.
func (b *Bundle) Close() error { return b.dir.Close() }
