package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/removetree"
)

// Store is the directory of unpacked layers, and of what is known of images.
//
//	DIR/sha256/CHAIN/     one per layer; see below for its flock
//	DIR/sha256/CHAIN/fs   the files, with overlayfs's whiteouts; complete if it exists
//	DIR/sha256/CHAIN/size of the files in bytes
//	DIR/sha256/CHAIN/tmp  of an unpacking that goes on, or was killed
//	DIR/sha256/CHAIN/part-BLOB    of a download that goes on, or broke
//	DIR/sha256/CHAIN/known/PROOF  one per blob that was read and is this layer
//	DIR/sha256/CHAIN.old-…        set aside: it is removed, or was taken over (stalled.go)
//	DIR/blobs/sha256/HEX  manifests and configurations of images that were pulled
//	DIR/names/KEY.json    what a name stands for, per platform (records.go)
//
// CHAIN is the chain id of the image specification: for a layer on nothing its
// diff id, for others the digest of all diff ids up to it, because directories
// that a layer doesn't describe take their attributes from the layers below.
//
// Any number of processes may use a store at once, and each may be killed at any time.
// A process that unpacks or removes a layer holds the exclusive lock of its directory. A
// process that is about to use the layer holds the shared lock until the files are mounted
// and noted (NoteLayers). A pull holds the shared lock of DIR/names; removing documents takes the
// exclusive one.
//
// Users share layers, but knowing a digest gives nobody the files: an image gets a layer
// only if it has the blob. For an image of a registry the registry's manifest proves that.
// The blob of a layout is read once for each file that holds it, because the digest in a
// layout is only a claim.
type Store struct {
	Dir string
	// MaxLayer bounds the unpacked size of one layer in bytes; 0 means 256 GiB.
	MaxLayer int64
	// Stall is how long another process may keep a layer without getting on before this one
	// takes over; 0 means a minute.
	Stall time.Duration
}

// algorithms name the directories that have layers.
func algorithms() []string { return []string{"sha256", "sha384", "sha512"} }

func (s Store) layerDir(chain digest) string { return filepath.Join(s.Dir, chain.path()) }

// listLayerDirs are the directories of all layers, complete or not.
func (s Store) listLayerDirs() (all []string) {
	for _, a := range algorithms() {
		found, err := filepath.Glob(filepath.Join(escapePattern(s.Dir), a, "*"))
		if err == nil { // a pattern of ours is never wrong
			all = append(all, found...)
		}
	}
	return slices.DeleteFunc(all, isAside)
}

// escapePattern keeps a directory's name from being taken for a pattern.
func escapePattern(dir string) string {
	out := make([]byte, 0, len(dir))
	for i := range len(dir) {
		switch dir[i] {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, dir[i])
	}
	return string(out)
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func filesDir(home string) string { return filepath.Join(home, "fs") }

// proofPath is the file that stands for a blob having been read and found to be the
// layer, "" if nothing can.
func proofPath(home, of string) string {
	if of == "" {
		return ""
	}
	return filepath.Join(home, "known", fmt.Sprintf("%x", sha256.Sum256([]byte(of))))
}

// proofLimit is the most proofs that are kept of one layer.
const proofLimit = 256

// writeProof forgets everything when there is too much: it is only read again.
func writeProof(proof string) error {
	if proof == "" {
		return nil
	}
	dir := filepath.Dir(proof)
	if names, err := os.ReadDir(dir); err == nil && len(names) >= proofLimit {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.WriteFile(proof, nil, 0o600)
}

// claimLayer waits until a layer is there, and returns its lock, shared; or, with
// mine, until it is to be unpacked by the caller, who has the lock alone. It polls,
// so that it can be interrupted. The error Is errStalled if the process that unpacks the
// layer makes no progress.
func claimLayer(ctx context.Context, home string, watch *stallWatch, waiting func()) (held *os.File, mine bool, err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		how := lock.Exclusive
		if pathExists(filesDir(home)) {
			how = lock.Shared
		}
		f, err := tryLock(home, how, true)
		if err != nil {
			return nil, false, err
		}
		if f != nil && pathExists(filesDir(home)) == (how == lock.Shared) {
			return f, how == lock.Exclusive, nil
		}
		if f != nil { // somebody was faster
			f.Close() // only locked
			continue
		}
		if how == lock.Exclusive && watch.stalled(home) {
			return nil, false, errStalled
		}
		waiting()
		select {
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// tryLock returns nil, nil when somebody else holds the lock, or has just removed the
// directory.
func tryLock(dir string, how lock.Mode, mkdir bool) (*os.File, error) {
	if mkdir {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	f, err := lock.TryOpen(dir, how)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, lock.ErrBusy) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !lock.IsAt(int(f.Fd()), dir) {
		f.Close() // only locked
		return nil, nil
	}
	return f, nil
}

// maxPartAge is how long what a broken download has got is kept for the next one.
const maxPartAge = 7 * 24 * time.Hour

// sweepUnfinished removes what killed unpackings of any layer left. Unpacking is rare and
// long, so looking at each layer costs nothing; what can't be removed is left
// for the next time.
func (s Store) sweepUnfinished() {
	s.sweepAside()
	for _, home := range s.listLayerDirs() {
		if pathExists(filesDir(home)) {
			continue
		}
		held, err := tryLock(home, lock.Exclusive, false)
		if held == nil || err != nil {
			continue
		}
		if !pathExists(filesDir(home)) {
			_ = discardUnfinished(context.Background(), home, held, maxPartAge) // best effort, see above
		}
		held.Close() // read-only
	}
}

// discardUnfinished removes a layer that isn't complete, and that is locked by held, but keeps a
// download that is younger than an age. The error Is errTakenOver if the layer isn't the caller's any more.
func discardUnfinished(ctx context.Context, home string, held *os.File, keep time.Duration) error {
	aside, err := setAsideOld(ctx, home, held, keep)
	if err != nil {
		return err
	}
	if aside == "" {
		return removetree.RemoveAll(filepath.Join(openPath(held), "tmp"))
	}
	return removetree.RemoveAll(aside)
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
