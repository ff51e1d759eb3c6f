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

// maxParallelLayers is how many layers are downloaded and unpacked at a time, as docker does.
const maxParallelLayers = 3

// Progress tells about work that takes long. Done and Total are compressed bytes of
// all layers that weren't there yet, LayerDone and LayerSize those of this one.
// Waiting: another task unpacks the layer. Ready: it is there now. Layers is how many
// the image has, 0 if that is not known.
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

// Unpack makes sure that every layer of the image is there, downloads what isn't, and
// returns their directories, topmost first, for overlayfs. For a directory image it
// is the directory. report may be nil; its calls don't overlap.
//
// The layers stay while the image isn't closed. An image that was pulled has its name
// in the store when this returns nil.
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
	// The kernel doesn't honour a layer that hides all below it: leave those out.
	if i := slices.IndexFunc(dirs, overlay.IsOpaque); i >= 0 {
		dirs = dirs[:i+1]
	}
	return dirs, nil
}

// lockReady returns the directories if all layers are there, undermost first, and nil
// otherwise.
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

// unpackAll unpacks several layers at a time and starts with the lowest. A layer that waits
// for one below it therefore waits for one that was started before it: there is no deadlock.
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

// missingBytes are the bytes that have to be read.
func (s Store) missingBytes(ctx context.Context, img *Image) (total int64) {
	for _, l := range img.layers {
		src, err := img.origin.layer(ctx, l, "")
		if err != nil {
			continue // will be said when it's needed
		}
		src.close()
		home := s.layerDir(l.chain)
		if known := proofPath(home, src.proof); known == "" || !pathExists(known) || !pathExists(filesDir(home)) {
			total += l.blob.Size
		}
	}
	return total
}

// unpacking is one image's layers being unpacked.
type unpacking struct {
	store    Store
	img      *Image
	progress *progress
	mu       sync.Mutex // of the image's locks
	dirs     []string   // undermost first; valid when done is closed
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

// getLayer brings one layer about, by us or by somebody else.
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
			if taken { // once: two processes with slow connections would begin again and again
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
		held.Close() // only locked; the next round takes it shared, or finds that it was pruned
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

// proveLayer lets an image use a layer that is there: it must have the layer itself, and
// not merely name it. Its blob is read once for that.
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
	discard := func(io.Reader) error { return nil } // readLayer reads to the end for the digests
	if err := readLayer(ctx, src, l, w.progress, w.store.maxArchiveSize(), discard); err != nil {
		return fmt.Errorf("check layer %s: %w", l.displayName(), err)
	}
	return writeProof(known)
}

// unpackLayer fills a layer's directory, which is locked by held. A blob that came corrupt is
// fetched once again. The error Is errTakenOver if another process has taken the layer over.
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
	// Removed under the lock; who waits for it sees that it has gone. Also if ctx has ended.
	left := discardUnfinished(context.WithoutCancel(ctx), home, held, keep)
	if errors.Is(left, errTakenOver) {
		w.progress.restartLayer(w.img.layers[i])
		return errors.Join(errTakenOver, removetree.RemoveAll(filepath.Join(openPath(held), "tmp")))
	}
	return errors.Join(err, left)
}

// isResumable reports whether a download can go on where it ended.
func isResumable(err error) bool {
	var d downloadError
	return errors.As(err, &d)
}

// fetchLayer writes by way of the open directory, which may be at home no more.
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

// fillDirectory unpacks into an empty tmp.
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
	// An archive's entry for the root itself isn't applied.
	return written, os.Chmod(tmp, 0o755)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
