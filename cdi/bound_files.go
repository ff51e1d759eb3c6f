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

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
)

// Limits of the files that containers have bound. A file can be removed while it is bound; only a
// runtime that is about to bind it needs its name.
const (
	boundCount = 256
	boundBytes = 32 << 20
	boundGrace = 10 * time.Minute
)

// errFull: the limits leave no room for another file.
var errFull = errors.New("no room for another file")

// boundFiles is a directory of files that are named by content: loader caches, and the admin's files
// for NCCL. Containers with the same content share a file; no container can change it.
type boundFiles struct{ dir string }

func boundFilesOf(common shared.Dir) boundFiles {
	return boundFiles{filepath.Join(common.Source, ".bound")}
}

// addFile returns the file with this content. It makes room by removing what was used
// longest ago; what was used within boundGrace stays.
func (b boundFiles) addFile(content []byte) (file string, err error) {
	file = filepath.Join(b.dir, fmt.Sprintf("%x", sha256.Sum256(content)))
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return "", err
	}
	held, err := lock.Create(context.Background(), filepath.Join(b.dir, "lock"), 0o600, lock.Exclusive)
	if errors.Is(err, unix.EROFS) && hasContent(file, content) {
		return file, nil // on a read-only disk the file can't be removed either
	}
	if err != nil {
		return "", err
	}
	defer held.Close() // nothing was written
	if hasContent(file, content) {
		now := time.Now()
		return file, os.Chtimes(file, now, now)
	}
	if err := b.makeRoom(int64(len(content))); err != nil {
		return "", err
	}
	return file, atomicfile.Write(file, content, 0o644, atomicfile.Options{})
}

// hasContent reports whether the file has this content. It reads the file, because a privileged
// container can write through its bind mount.
func hasContent(file string, content []byte) bool {
	data, err := os.ReadFile(file)
	return err == nil && bytes.Equal(data, content)
}

func (b boundFiles) makeRoom(size int64) error {
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

// listByUse returns the files in the order of their last use, the oldest first.
func (b boundFiles) listByUse() (all []fs.FileInfo, err error) {
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
