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

// Limits of what is remembered, which may lie in memory: so many merged caches, each
// of at most so many bytes, and all together. Most images' have some 40 KiB; of 5,000
// libraries it takes 500.
const (
	memoLimit = 128
	memoSize  = 1 << 20
	memoBytes = 32 << 20
)

// memoSame is remembered in place of a merged cache that is the old one: that of a
// root which was prepared before.
const memoSame = "as it is\n"

// mergedCache is mergeCache, remembered below state: merging takes most of the time of
// a start, and the containers of an image all begin with the same cache. What
// can't be remembered is merged again.
func (p *preparation) mergedCache(old []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %+v\n", p.dir.Path, p.Target, p.newer.entries)
	h.Write(old)
	file := filepath.Join(p.state, "ldmemo", fmt.Sprintf("%x", h.Sum(nil)))
	if data, err := smallfile.Read(file, memoSize); err == nil {
		if string(data) == memoSame {
			return old
		}
		return data
	}
	notes := len(p.Notes)
	data := p.mergeCache(old)
	switch {
	case len(p.Notes) > notes: // what was noted is to be noted again
	case bytes.Equal(data, old):
		rememberMerged(file, []byte(memoSame))
	case len(data) <= memoSize:
		rememberMerged(file, data)
	}
	return data
}

// rememberMerged forgets everything when there is too much: what is used comes back.
func rememberMerged(file string, data []byte) {
	dir := filepath.Dir(file)
	if exceedsLimit(dir, int64(len(data))) {
		_ = os.RemoveAll(dir) // a memory that can't be emptied is as good
	}
	if os.MkdirAll(dir, 0o700) == nil {
		_ = atomicfile.Write(file, data, 0o600, atomicfile.Options{}) // next time, then
	}
}

// exceedsLimit says that a file of that size is more than is to be remembered.
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
	return len(names) >= memoLimit || size > memoBytes
}
