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
	"github.com/berth-gpu/berth/internal/userns"
)

// Store is the directory of unpacked layers and of records of images.
//
//	DIR/sha256/CHAIN/     one per layer; see below for its flock
//	DIR/sha256/CHAIN/fs   the files, with overlayfs's whiteouts; complete if it exists
//	DIR/sha256/CHAIN/size size of the files in bytes
//	DIR/sha256/CHAIN/image the path of the SIF file that the layer is from (squashfs.go)
//	DIR/sha256/CHAIN/tmp  files that are being unpacked, or whose unpacking was killed
//	DIR/sha256/CHAIN/part-BLOB    a download that runs, or was interrupted
//	DIR/sha256/CHAIN/known/PROOF  one per blob that was verified to be this layer
//	DIR/sha256/CHAIN.old-…        set aside: being removed, or taken over (stalled.go)
//	DIR/blobs/sha256/HEX  manifests and configurations of images that were pulled
//	DIR/names/KEY.json    what a name stands for, per platform (records.go)
//	DIR/uses/RANDOM       layers that processes use which aren't a task's; see use.go for its flock
//	DIR/sif/HEX/          SIF files (sif_files.go)
//
// CHAIN is the chain id of the image specification. It depends on the layers below, because directories that a
// layer doesn't describe get their attributes from them.
//
// Any number of processes may use a store concurrently, and each may be killed at any time. A process that
// unpacks or removes a layer holds the exclusive lock of its directory. A process that is about to use the layer
// holds the shared lock until the files are mounted and recorded (NoteLayers). A pull holds the shared lock of
// DIR/names; removing documents takes the exclusive one.
//
// Users share layers, but knowing a digest doesn't give access to the files: an image gets a layer only if it has
// the blob. For an image of a registry the registry's manifest proves that. The digest in a layout is only a
// claim, so the blob is read once for each file that contains it.
type Store struct {
	Dir string
	// MaxLayer bounds the unpacked size of one layer in bytes; 0 means 256 GiB.
	MaxLayer int64
	// Stall is how long another process may hold a layer without progress before this one takes the layer
	// over; 0 means a minute.
	Stall time.Duration
}

// StoreIn returns the store below a data directory. A user namespace without subordinate ids has a store of its own: in its layers all files
// belong to the user.
func StoreIn(data string) Store {
	if userns.IsInside() && userns.HasUser(1) {
		return subordinateStore(data)
	}
	return SingleOwnerStore(data)
}

func subordinateStore(data string) Store { return Store{Dir: filepath.Join(data, "images-subids")} }

// algorithms returns the names of the directories with layers.
func algorithms() []string { return []string{"sha256", "sha384", "sha512"} }

func (s Store) layerDir(chain digest) string { return filepath.Join(s.Dir, chain.path()) }

// listLayerDirs returns the directories of all layers, complete or not.
func (s Store) listLayerDirs() (all []string) {
	for _, a := range algorithms() {
		found, err := filepath.Glob(filepath.Join(escapePattern(s.Dir), a, "*"))
		if err == nil { // always nil: the pattern is well-formed
			all = append(all, found...)
		}
	}
	return slices.DeleteFunc(all, isAside)
}

// escapePattern escapes a path for use in a pattern of filepath.Glob.
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

// proofPath returns the path of the file whose existence means that the blob with the proof of was verified to be
// this layer; "" for a blob without a proof.
func proofPath(home, of string) string {
	if of == "" {
		return ""
	}
	return filepath.Join(home, "known", fmt.Sprintf("%x", sha256.Sum256([]byte(of))))
}

// proofLimit is the maximum number of proofs of a layer.
const proofLimit = 256

// writeProof creates a proof's file. If the layer has proofLimit proofs, they are removed first: the blobs are then
// read again.
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

// claimLayer waits until a layer is complete or isn't locked, and locks it. For a complete layer it returns the
// shared lock. For an incomplete one it returns the exclusive lock and mine, and the caller unpacks the layer. It
// polls, so that ctx can interrupt it. The error Is errStalled if the process that unpacks the layer makes no
// progress.
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
		if f != nil { // another process was faster
			f.Close() // a lock
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

// tryLock locks a directory without waiting. It returns nil, nil if another process holds the lock, or has just
// removed the directory. mkdir creates a missing directory.
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
		f.Close() // a lock
		return nil, nil
	}
	return f, nil
}

// maxPartAge is how long the part file of an interrupted download is kept.
const maxPartAge = 7 * 24 * time.Hour

// sweepUnfinished removes what processes that were killed while unpacking have left. What can't be removed is left
// for the next call. Unpacking is rare and slow, so checking all layers costs little in comparison.
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
		held.Close() // a lock
	}
}

// discardUnfinished removes an incomplete layer that is locked by held. A part file that is younger than keep
// stays. The error Is errTakenOver if another process has taken the layer over.
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
