package cdi

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Limits of the stored merged caches, whose directory may be a tmpfs: their number, the size of
// each, and their total size. Most images have a cache of about 40 KiB; with 5,000 libraries it has
// 500 KiB.
const (
	maxMerged      = 128
	maxMergedSize  = 1 << 20
	maxMergedBytes = 32 << 20
)

// markUnchanged is stored if merging doesn't change the cache, because the root was prepared before.
const markUnchanged = "as it is\n"

// mergedCache returns the result of mergeCache, which it stores below state: merging takes most of
// the time of a start, and all containers of an image begin with the same cache. A result that can't
// be stored is computed again.
func (p *preparation) mergedCache(old []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %+v\n", p.dir.Path, p.Target, p.newer.entries)
	h.Write(old)
	file := filepath.Join(p.state, "ldmemo", fmt.Sprintf("%x", h.Sum(nil)))
	if data, err := smallfile.Read(file, maxMergedSize); err == nil {
		if string(data) == markUnchanged {
			return old
		}
		return data
	}
	notes := len(p.Notes)
	data := p.mergeCache(old)
	switch {
	case len(p.Notes) > notes: // not stored, so that the next start notes it too
	case bytes.Equal(data, old):
		storeMerged(file, []byte(markUnchanged))
	case len(data) <= maxMergedSize:
		storeMerged(file, data)
	}
	return data
}

// storeMerged stores a merged cache. If the limits are exceeded, it removes all stored caches first;
// those in use are stored again.
func storeMerged(file string, data []byte) {
	dir := filepath.Dir(file)
	if exceedsLimit(dir, int64(len(data))) {
		_ = os.RemoveAll(dir) // caches that can't be removed do no harm
	}
	if os.MkdirAll(dir, 0o700) == nil {
		_ = atomicfile.Write(file, data, 0o600, atomicfile.Options{}) // the next start tries again
	}
}

// exceedsLimit reports whether another file of this size would exceed the limits.
func exceedsLimit(dir string, size int64) bool {
	names, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, n := range names {
		if fi, err := n.Info(); err == nil {
			size += fi.Size()
		}
	}
	return len(names) >= maxMerged || size > maxMergedBytes
}
