package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/removetree"
	"github.com/berth-gpu/berth/launcher/overlay"
)

// maxParallelLayers is how many layers are downloaded and unpacked concurrently, as in docker.
const maxParallelLayers = 3

// Progress is a report about one layer of an image that is being unpacked. Done and Total are the compressed bytes
// of all missing layers, LayerDone and LayerSize those of this one. Waiting means that another process unpacks the
// layer, Ready that it is complete. Layers is the number of the image's layers, 0 if unknown.
type Progress struct {
	Layer     string
	Layers    int
	LayerDone int64
	LayerSize int64
	Done      int64
	Total     int64
	Waiting   bool
	Ready     bool
}

// Unpack downloads and unpacks the missing layers of the image, and returns the directories of all layers for
// overlayfs, topmost first. For a directory image it returns the directory. report may be nil; its calls don't
// overlap.
//
// The layers aren't pruned until the image is closed. The name of an image that was pulled is recorded when Unpack
// returns nil.
func (s Store) Unpack(ctx context.Context, img *Image, report func(Progress)) ([]string, error) {
	if img.Dir != "" {
		return []string{img.Dir}, nil
	}
	if len(img.layers) > overlay.MaxLayers {
		return nil, fmt.Errorf("image %s has %d layers, more than the %d that can be mounted", img.Name, len(img.layers), overlay.MaxLayers)
	}
	dirs, err := slices.Clone(img.unpacked), error(nil)
	if dirs == nil {
		dirs, err = s.lockReady(ctx, img)
	}
	if err == nil && dirs == nil {
		dirs, err = s.unpackAll(ctx, img, &progress{report: report, count: len(img.layers)})
	}
	if err == nil && img.pulled != nil {
		err = s.writeRecord(*img.pulled)
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", img.Name, err)
	}
	slices.Reverse(dirs)
	return OmitHidden(dirs), nil
}

// OmitHidden returns layers, topmost first, without those that one above hides: the kernel ignores the opaque attribute of a layer's root. For layers that were unpacked in
// a user namespace, only a process in such a namespace sees the attribute.
func OmitHidden(dirs []string) []string {
	if i := slices.IndexFunc(dirs, overlay.IsOpaque); i >= 0 {
		return dirs[:i+1]
	}
	return dirs
}

// FindUnpacked returns the directories of all layers of the image, topmost first and with hidden ones, and nil if one is missing. It writes nothing. The layers aren't pruned until
// the image is closed.
func (s Store) FindUnpacked(ctx context.Context, img *Image) ([]string, error) {
	dirs, err := slices.Clone(img.unpacked), error(nil)
	if dirs == nil && len(img.layers) <= overlay.MaxLayers {
		dirs, err = s.lockReady(ctx, img)
	}
	slices.Reverse(dirs)
	return dirs, err
}

// lockReady locks all layers and returns their directories, the lowest first, if all are complete and verified to
// belong to the image. Otherwise it returns nil.
func (s Store) lockReady(ctx context.Context, img *Image) (dirs []string, err error) {
	for _, l := range img.layers {
		home := s.layerDir(l.chain)
		src, err := img.origin.layer(ctx, l, "")
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.displayName(), err)
		}
		src.close()
		if known := proofPath(home, src.proof); known == "" || !pathExists(known) || !pathExists(filesDir(home)) {
			return nil, nil
		}
		held, err := tryLock(home, lock.Shared, false)
		if err != nil || held == nil {
			return nil, err
		}
		img.held = append(img.held, held)
		if !pathExists(filesDir(home)) {
			return nil, nil
		}
		dirs = append(dirs, filesDir(home))
	}
	return dirs, nil
}

func (l layer) displayName() string {
	return string(cmp.Or(l.blob.Digest, l.diff))
}

// unpackAll unpacks several layers concurrently, beginning with the lowest. A layer only waits for layers below,
// which were started before it, so there is no deadlock.
func (s Store) unpackAll(ctx context.Context, img *Image, p *progress) ([]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.sweepUnfinished()
	p.total = s.missingBytes(ctx, img)
	w := unpacking{store: s, img: img, progress: p, dirs: make([]string, len(img.layers)), done: make([]chan struct{}, len(img.layers))}
	for i := range w.done {
		w.done[i] = make(chan struct{})
	}
	slots := make(chan struct{}, maxParallelLayers)
	var all sync.WaitGroup
	for i := range img.layers {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := w.getLayer(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return w.dirs, nil
}

// missingBytes returns how many bytes of blobs have to be read.
func (s Store) missingBytes(ctx context.Context, img *Image) (total int64) {
	for _, l := range img.layers {
		src, err := img.origin.layer(ctx, l, "")
		if err != nil {
			continue // getLayer returns the error
		}
		src.close()
		home := s.layerDir(l.chain)
		if known := proofPath(home, src.proof); known == "" || !pathExists(known) || !pathExists(filesDir(home)) {
			total += l.blob.Size
		}
	}
	return total
}

// unpacking is one call of unpackAll.
type unpacking struct {
	store    Store
	img      *Image
	progress *progress
	mu       sync.Mutex // protects img.held
	dirs     []string   // the lowest first; each is valid once its done is closed
	done     []chan struct{}
}

// waitBelow waits for the layers below one and returns their directories, topmost first.
func (w *unpacking) waitBelow(ctx context.Context, i int) ([]string, error) {
	for _, done := range w.done[:i] {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-done:
		}
	}
	dirs := slices.Clone(w.dirs[:i])
	slices.Reverse(dirs)
	return dirs, nil
}

// getLayer unpacks a layer, or waits until another process has unpacked it, and locks it.
func (w *unpacking) getLayer(ctx context.Context, i int) error {
	l := w.img.layers[i]
	home := w.store.layerDir(l.chain)
	watch := stallWatch{limit: w.store.stallLimit()}
	for {
		held, mine, err := claimLayer(ctx, home, &watch, func() { w.progress.reportLayer(l, Progress{Waiting: true}) })
		if errors.Is(err, errStalled) {
			taken, err := takeOver(ctx, home, watch.last)
			if err != nil {
				return fmt.Errorf("take over layer %s: %w", l.displayName(), err)
			}
			if taken { // at most once, so that two slow processes don't take the layer from each other for ever
				watch.limit = 0
			}
			continue
		}
		if err != nil {
			return err
		}
		if !mine {
			w.holdLock(held)
			err := w.proveLayer(ctx, l, home)
			if err == nil {
				w.dirs[i] = filesDir(home)
				w.progress.reportLayer(l, Progress{Ready: true})
				close(w.done[i])
			}
			return err
		}
		err = w.unpackLayer(ctx, i, home, held)
		held.Close() // a lock; the next iteration takes the shared lock, or finds that the layer was pruned
		if err != nil && !errors.Is(err, errTakenOver) {
			return fmt.Errorf("unpack layer %s: %w", l.displayName(), err)
		}
	}
}

func (w *unpacking) holdLock(f *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.img.held = append(w.img.held, f)
}

// proveLayer verifies that an image has the blob of a complete layer, and not only its digest. The blob is read
// unless there is a proof.
func (w *unpacking) proveLayer(ctx context.Context, l layer, home string) error {
	src, err := w.img.origin.layer(ctx, l, "")
	if err != nil {
		return fmt.Errorf("layer %s: %w", l.displayName(), err)
	}
	defer src.close()
	known := proofPath(home, src.proof)
	if known != "" && pathExists(known) {
		return nil
	}
	if src.unpack != nil { // the layer was found by its content
		return writeProof(known)
	}
	discard := func(io.Reader) error { return nil } // readLayer itself reads to the end
	if err := readLayer(ctx, src, l, w.progress, w.store.maxArchiveSize(), discard); err != nil {
		return fmt.Errorf("check layer %s: %w", l.displayName(), err)
	}
	return writeProof(known)
}

// unpackLayer unpacks a layer into its directory, which is locked by held. A corrupt blob is fetched a second time.
// The error Is errTakenOver if another process has taken the layer over.
func (w *unpacking) unpackLayer(ctx context.Context, i int, home string, held *os.File) error {
	defer w.showProgress(w.img.layers[i], held)()
	retry, err := w.fetchLayer(ctx, i, home, held)
	if retry && errors.Is(err, errCorrupt) {
		w.progress.restartLayer(w.img.layers[i])
		_, err = w.fetchLayer(ctx, i, home, held)
	}
	if err == nil {
		return nil
	}
	keep := time.Duration(0)
	full := errors.Is(err, unix.ENOSPC) || errors.Is(context.Cause(ctx), unix.ENOSPC)
	if (isResumable(err) || ctx.Err() != nil) && !full {
		keep = maxPartAge
	}
	// The directory is removed under the lock, so that waiting processes start again. That happens also if ctx
	// has ended.
	left := discardUnfinished(context.WithoutCancel(ctx), home, held, keep)
	if errors.Is(left, errTakenOver) {
		w.progress.restartLayer(w.img.layers[i])
		return errors.Join(errTakenOver, removetree.RemoveAll(filepath.Join(openPath(held), "tmp")))
	}
	return errors.Join(err, left)
}

// isResumable reports whether the error is of a download that can be continued.
func isResumable(err error) bool {
	var d downloadError
	return errors.As(err, &d)
}

// fetchLayer fetches and unpacks a layer. It writes through the open directory held, because the directory may be
// renamed meanwhile. retry means that a second attempt may succeed.
func (w *unpacking) fetchLayer(ctx context.Context, i int, home string, held *os.File) (retry bool, err error) {
	l, dir := w.img.layers[i], openPath(held)
	part, tmp := filepath.Join(dir, "part-"+l.blob.Digest.fileName()), filepath.Join(dir, "tmp")
	src, err := w.img.origin.layer(ctx, l, part)
	if err != nil {
		return false, err
	}
	written, err := w.fillDirectory(ctx, tmp, src, i)
	src.close()
	if err != nil {
		if errors.Is(err, errCorrupt) {
			err = errors.Join(err, removeIfThere(part))
		}
		return src.retry, err
	}
	err = errors.Join(removeIfThere(part), os.WriteFile(filepath.Join(dir, "size"), []byte(strconv.FormatInt(written, 10)), 0o600))
	if src.unpack != nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "image"), []byte(w.img.Name), 0o600))
	}
	if err == nil {
		err = syncFS(tmp)
	}
	if err == nil {
		err = finishLayer(ctx, home, held)
	}
	if err != nil {
		return false, err
	}
	return false, writeProof(proofPath(home, src.proof))
}

// fillDirectory unpacks the blob into the directory tmp, which it empties first, and returns the size of the files.
func (w *unpacking) fillDirectory(ctx context.Context, tmp string, src source, i int) (int64, error) {
	if err := removetree.RemoveAll(tmp); err != nil {
		return 0, err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return 0, err
	}
	below := func() ([]string, error) { return w.waitBelow(ctx, i) }
	written, err := w.store.unpackInto(ctx, tmp, src, w.img.layers[i], below, w.progress)
	if err != nil {
		return 0, err
	}
	// The mode of the root is fixed: an archive's entry for the root isn't applied.
	return written, os.Chmod(tmp, 0o755)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
