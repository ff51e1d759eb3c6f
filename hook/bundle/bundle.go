// Package bundle reads and rewrites the config.json of an OCI bundle.
//
// A [Document] is the pure part: it decodes the few sections that berth has to
// know, carries everything else byte for byte, and refuses what two parsers
// could read differently. A [Bundle] is the directory: it writes the file once
// (temporary file and rename), keeps the original beside it as config.json.berth
// (a hard link, hence with its mode, owner and bytes), and puts it back.
//
// The bundle belongs to the engine, and its path is trusted as much as the
// engine is. What strangers have written (annotations, environment) is data in
// the document. The package decides nothing about devices.
//
// Whatever is there when a process of ours is killed, the bundle can be used:
// config.json is at every moment the original or a whole rewritten one, and who
// opens it next starts from the original again.
package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Limit is the size in bytes that a config.json can have. Engines write some
// 10 to 100 kB.
const Limit = 16 << 20

const (
	// keptSuffix names the original of a rewritten file.
	keptSuffix = ".berth"
	tempSuffix = ".berth-new"
)

// Bundle is an open bundle directory. It isn't safe for concurrent use.
type Bundle struct {
	path string // of config.json, for messages
	dir  *os.File
	name string
	now  *Document    // config.json as it is
	orig *Document    // where edits start from; now unless it was rewritten
	info *unix.Stat_t // of orig
	read [2]stamp     // of config.json and the kept original, before they were read
}

// stamp of a file: it changes whenever anybody replaces the file or writes to it.
type stamp struct{ ino, size, sec, nsec int64 }

// Open reads the bundle in dir. config is the path of its configuration, "" for
// dir/config.json. Symbolic links to the directory and to the file are followed
// for reading, as runtimes do; a link that stands in config.json's place is itself
// what is kept and put back, and the file that it names is never written.
//
// If config.json is exactly what berth once wrote, the kept original is what
// [Bundle.Spec] returns. If anybody has written it since, it is an original.
func Open(dir, config string) (*Bundle, error) {
	if config == "" {
		config = filepath.Join(dir, "config.json")
	}
	parent, name := filepath.Split(config)
	d, err := unix.Open(or(parent, "."), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
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

// useOriginal is for an empty config.json: the machine went down before the
// rewritten file reached the disk.
func (b *Bundle) useOriginal(kept []byte, info *unix.Stat_t) (err error) {
	if b.orig, err = Parse(kept); err != nil {
		return fmt.Errorf("read %s%s: %w", b.path, keptSuffix, err)
	}
	b.now, b.info = &Document{view: []byte("{}")}, info
	return nil
}

// readFile returns the content of a regular file of limited size. (An os.File
// would be made ready for polling first, which files can't be.)
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
	data, err = smallfile.ReadFD(fd, Limit)
	if errors.Is(err, smallfile.ErrTooLarge) {
		return nil, nil, fmt.Errorf("more than the limit of %d bytes", Limit)
	}
	return data, info, err
}

// Spec decodes the original: see [Document.Spec].
func (b *Bundle) Spec() (*specs.Spec, error) { return b.orig.Spec() }

// Reach decodes a part of the original: see [Document.Reach].
func (b *Bundle) Reach() (*specs.Spec, error) { return b.orig.Reach() }

// RootPath is the path of the root file system that the runtime reads, "" if there is none.
func (b *Bundle) RootPath() (string, error) { return b.now.rootPath() }

// RewrittenSpec returns the spec that berth has written into the bundle before, nil
// if config.json is an original.
func (b *Bundle) RewrittenSpec() (*specs.Spec, error) {
	if b.orig == b.now {
		return nil, nil
	}
	return b.now.Spec()
}

// RewrittenAnnotations returns the annotations of the spec that berth has written into the bundle
// before, nil if config.json is an original.
func (b *Bundle) RewrittenAnnotations() (map[string]string, error) {
	if b.orig == b.now {
		return nil, nil
	}
	s, err := b.now.Reach()
	if err != nil {
		return nil, err
	}
	return s.Annotations, nil
}

// Lock waits until no other process of ours changes this bundle. It says whether
// the bundle has been changed since it was read, and reads it again if so. The
// lock ends with Close, with exec and with the process.
func (b *Bundle) Lock() (changed bool, err error) {
	if err := lock.Acquire(context.Background(), int(b.dir.Fd()), lock.Exclusive); err != nil {
		return false, fmt.Errorf("lock bundle of %s: %w", b.path, err)
	}
	if b.readStamps() == b.read {
		return false, nil
	}
	return true, b.readFiles()
}

// readStamps are zero for what can't be seen.
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

// IsRemoved says that the directory that was opened is nowhere any more.
func (b *Bundle) IsRemoved() bool {
	var st unix.Stat_t
	return unix.Fstat(int(b.dir.Fd()), &st) == nil && st.Nlink == 0
}

// Close gives up the directory, and with it the lock.
func (b *Bundle) Close() error { return b.dir.Close() }

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
