package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/overlay"
)

// Store is the directory of unpacked layers.
//
//	DIR/sha256/CHAIN/     one per layer; its flock is held while it's unpacked
//	DIR/sha256/CHAIN/fs   the files, with overlayfs's whiteouts; complete if it exists
//	DIR/sha256/CHAIN/tmp  of an unpacking that goes on, or was killed
//	DIR/sha256/CHAIN/known/PROOF  one per blob file that was read and is this layer
//
// CHAIN is the chain id of the image specification: for a layer on nothing its
// diff id, for others the digest of all diff ids up to it, because directories
// that a layer doesn't describe take their attributes from the layers below.
// Any number of processes may use a store at once.
//
// Users share layers but don't get them by knowing a digest: a layout gives the
// files of a layer only if it has the blob, which is read once for each file that
// holds it, as a blob's digest is only its layout's word for what is inside.
type Store struct {
	Dir string
	// MaxLayer bounds the unpacked size of one layer in bytes; 0 means 256 GiB.
	MaxLayer int64
}

// Progress tells about work that takes long. Done and Total are compressed bytes
// of all layers that weren't there yet. Waiting: another task unpacks the layer.
type Progress struct {
	Layer   string
	Done    int64
	Total   int64
	Waiting bool
}

// Unpack makes sure that every layer of the image is there, and returns their
// directories, topmost first, for overlayfs. For a directory image it is the
// directory. report may be nil; it is called from the calling goroutine.
func (s Store) Unpack(ctx context.Context, img *Image, report func(Progress)) ([]string, error) {
	if img.Dir != "" {
		return []string{img.Dir}, nil
	}
	if len(img.layers) > overlay.MaxLayers {
		return nil, fmt.Errorf("image %s has %d layers, more than the %d that can be mounted", img.Name, len(img.layers), overlay.MaxLayers)
	}
	p := &meter{report: report}
	var dirs []string // topmost first
	for _, l := range img.layers {
		dir, err := s.layer(ctx, img, l, dirs, p)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", img.Name, err)
		}
		dirs = slices.Insert(dirs, 0, dir)
	}
	// The kernel doesn't honour a layer that hides all below it: leave those out.
	if i := slices.IndexFunc(dirs, overlay.Opaque); i >= 0 {
		dirs = dirs[:i+1]
	}
	return dirs, nil
}

func (s Store) home(l layer) string {
	return filepath.Join(s.Dir, l.chain.path())
}

// missing are the bytes that have to be read.
func (s Store) missing(img *Image) (total int64) {
	for _, l := range img.layers {
		f, err := img.openBlob(l.blob)
		if err != nil {
			continue // will be said when it's needed
		}
		if !s.ready(l, f) {
			total += l.blob.Size
		}
		f.Close() // only looked at
	}
	return total
}

// ready says that a layer is unpacked, and that f is known to hold it.
func (s Store) ready(l layer, f *os.File) bool {
	return exists(filepath.Join(s.home(l), "fs")) && exists(s.proof(l, f))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// layer returns the directory of one layer, unpacked by us or by somebody else.
func (s Store) layer(ctx context.Context, img *Image, l layer, below []string, p *meter) (_ string, err error) {
	home := s.home(l)
	files := filepath.Join(home, "fs")
	blob, err := img.openBlob(l.blob)
	if err != nil {
		return "", fmt.Errorf("layer %s: %w", l.blob.Digest, err)
	}
	defer blob.Close() // only read from
	if s.ready(l, blob) {
		return files, nil
	}
	p.begin(l, func() int64 { return s.missing(img) })
	if exists(files) {
		return files, s.prove(ctx, blob, l, p)
	}
	lock, err := lockDir(ctx, home, p)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if exists(files) {
		return files, s.prove(ctx, blob, l, p)
	}
	s.sweep()
	tmp := filepath.Join(home, "tmp")
	proof := s.proof(l, blob) // of the file as it was before it was read
	err = s.fill(ctx, tmp, blob, l, below, p)
	if err == nil {
		err = os.Rename(tmp, files)
	}
	if err != nil {
		// Removed under the lock; who waits for it sees that it has gone.
		return "", errors.Join(fmt.Errorf("unpack layer %s: %w", l.blob.Digest, err), os.RemoveAll(home))
	}
	return files, remember(proof)
}

// fill unpacks into an empty tmp and has it on disk when it returns nil.
func (s Store) fill(ctx context.Context, tmp string, blob *os.File, l layer, below []string, p *meter) error {
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	if err := s.apply(ctx, tmp, blob, l, below, p); err != nil {
		return err
	}
	// An archive's entry for the root itself isn't applied.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return syncFS(tmp)
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// lockDir makes dir and holds its lock, which ends with the returned file. It
// polls, so that it can be interrupted.
func lockDir(ctx context.Context, dir string, p *meter) (*os.File, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		f, err := tryLock(dir, true)
		if f != nil || err != nil {
			return f, err
		}
		p.waiting()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// tryLock returns nil, nil when somebody else holds the lock, or has just
// removed the directory.
func tryLock(dir string, mkdir bool) (*os.File, error) {
	if mkdir {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && !stillAt(f, dir) {
		err = unix.EWOULDBLOCK
	}
	if err == nil {
		return f, nil
	}
	f.Close() // read-only
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", dir, err)
}

// stillAt: a lock on a directory that was removed meanwhile holds nobody off.
func stillAt(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// sweep removes what killed unpackings of any layer left. Unpacking is rare and
// long, so looking at each layer costs nothing; what can't be removed is left
// for the next time.
func (s Store) sweep() {
	homes, err := filepath.Glob(filepath.Join(s.Dir, "*", "*"))
	if err != nil {
		return
	}
	for _, home := range homes {
		if exists(filepath.Join(home, "fs")) {
			continue
		}
		lock, err := tryLock(home, false)
		if lock == nil || err != nil {
			continue
		}
		if !exists(filepath.Join(home, "fs")) {
			_ = os.RemoveAll(home) // best effort, see above
		}
		lock.Close() // read-only
	}
}
