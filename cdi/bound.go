package cdi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
)

// Limits of the caches that are kept for containers to have bound, which may lie
// in memory. Who holds one needs it no longer by its name: only a runtime that is
// about to bind it does.
const (
	boundCount = 256
	boundBytes = 32 << 20
	boundGrace = 10 * time.Minute
)

// errFull: there is no room for another cache.
var errFull = errors.New("no room for another loader cache")

// boundCaches is a directory of loader caches that are named by content, so that
// containers of one image share one and none changes what another sees.
type boundCaches struct{ dir string }

// addFile returns the file with this content. It makes room by removing what was used
// longest ago; what was used within boundGrace stays.
func (b boundCaches) addFile(content []byte) (file string, err error) {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return "", err
	}
	held, err := lock.Create(context.Background(), filepath.Join(b.dir, "lock"), 0o600, lock.Exclusive)
	if err != nil {
		return "", err
	}
	defer held.Close() // nothing was written
	file = filepath.Join(b.dir, fmt.Sprintf("%x", sha256.Sum256(content)))
	// A privileged container can write through its bind: the name isn't enough.
	if data, err := os.ReadFile(file); err == nil && bytes.Equal(data, content) {
		now := time.Now()
		return file, os.Chtimes(file, now, now)
	}
	if err := b.makeRoom(int64(len(content))); err != nil {
		return "", err
	}
	return file, atomicfile.Write(file, content, 0o644, atomicfile.Options{})
}

func (b boundCaches) makeRoom(size int64) error {
	all, err := b.listByUse()
	if err != nil {
		return err
	}
	count := len(all) + 1
	for _, c := range all {
		size += c.Size()
	}
	for _, c := range all {
		if count <= boundCount && size <= boundBytes {
			return nil
		}
		if time.Since(c.ModTime()) < boundGrace {
			return errFull
		}
		if err := os.Remove(filepath.Join(b.dir, c.Name())); err != nil {
			return err
		}
		count, size = count-1, size-c.Size()
	}
	return nil
}

// listByUse is sorted, what was used longest ago first.
func (b boundCaches) listByUse() (all []fs.FileInfo, err error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return nil, err
		}
		if e.Name() != "lock" {
			all = append(all, fi)
		}
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return all, nil
}
