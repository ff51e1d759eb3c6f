package cdi

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/atomicfile"
)

// Limits of what is remembered, which may lie in memory: so many merged caches,
// each of at most so many bytes. Most images' have some 40 KiB.
const (
	memoLimit = 128
	memoSize  = 256 << 10
)

// merged is mergeCache, remembered below state: merging takes most of the time of
// a start, and the containers of an image all begin with the same cache. What
// can't be remembered is merged again.
func (p *preparation) merged(old []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %+v\n", p.dir.Path, p.Target, p.newer.entries)
	h.Write(old)
	file := filepath.Join(p.state, "ldmemo", fmt.Sprintf("%x", h.Sum(nil)))
	if data, err := os.ReadFile(file); err == nil {
		return data
	}
	notes := len(p.Notes)
	data := p.mergeCache(old)
	if len(p.Notes) == notes && len(data) <= memoSize { // what was noted is to be noted again
		remember(file, data)
	}
	return data
}

// remember forgets everything when there is too much: what is used comes back.
func remember(file string, data []byte) {
	dir := filepath.Dir(file)
	if names, err := os.ReadDir(dir); err == nil && len(names) >= memoLimit {
		_ = os.RemoveAll(dir) // a memory that can't be emptied is as good
	}
	if os.MkdirAll(dir, 0o700) == nil {
		_ = atomicfile.Write(file, data, 0o600, atomicfile.Options{}) // next time, then
	}
}
