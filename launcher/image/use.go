package image

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// SingleOwnerStore returns the store below a data directory in which all files of a user's layers belong to that user. Without subordinate ids it is
// that of [StoreIn]. Layers are unpacked into it in a user namespace without subordinate ids. For root of the machine it is the one store.
func SingleOwnerStore(data string) Store { return Store{Dir: filepath.Join(data, "images")} }

// usesDir has a file for each use that isn't a task's: the lines of a LayersFile, and a shared lock that the processes hold. The lock ends with the
// last of them, so a file that isn't locked is a leftover.
func (s Store) usesDir() string { return filepath.Join(s.Dir, "uses") }

// NewUse creates a file that stands for processes which use layers and aren't a task's. While this process or another one has the file open, the layers
// of [Image.RecordUse] aren't pruned. The file is open for reading. Some leftovers of ended processes are removed.
func (s Store) NewUse() (*os.File, error) {
	if err := os.MkdirAll(s.usesDir(), 0o700); err != nil {
		return nil, err
	}
	if err := s.sweepUses(); err != nil {
		return nil, err
	}
	const tries = 10 // a file that isn't locked yet may be removed
	for range tries {
		path := filepath.Join(s.usesDir(), rand.Text())
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return nil, err
		}
		f, err := lock.TryOpen(path, lock.Shared)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, lock.ErrBusy) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if lock.IsAt(int(f.Fd()), path) {
			return f, nil
		}
		f.Close() // a lock
	}
	return nil, fmt.Errorf("record a use of images in %s: other processes remove the file", s.usesDir())
}

// RecordUse notes that the processes of a file of [Store.NewUse] use the image with these layers, the result of Unpack. It must be called before the
// image is closed.
func (img *Image) RecordUse(path string, layers []string) error {
	if err := os.WriteFile(path, img.listLayers(layers), 0o600); err != nil {
		return fmt.Errorf("record the use of layers: %w", err)
	}
	return nil
}

// listLayers returns the content of a LayersFile.
func (img *Image) listLayers(layers []string) []byte {
	var b bytes.Buffer
	b.WriteString(imageKey + img.Digest + "\n")
	for _, dir := range layers {
		b.WriteString(filepath.Base(filepath.Dir(dir)) + "\n")
	}
	return b.Bytes()
}

// maxSwept is how many files of uses are looked at by each new use.
const maxSwept = 64

// sweepUses removes files of uses that have ended, if they are among the first in the directory. [Store.Prune] removes all.
func (s Store) sweepUses() error {
	dir, err := os.Open(s.usesDir())
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(maxSwept)
	if err := dir.Close(); err != nil {
		return err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = s.readUses(names, true)
	return err
}

// maxUse bounds the file of a use, in bytes. The lines of [overlay.MaxLayers] layers are a tenth of it.
const maxUse = 256 << 10

// listUses returns the lines of all uses that last, those of one use in one entry. clean removes the files of the others.
func (s Store) listUses(clean bool) ([][]byte, error) {
	names, err := smallfile.Names(s.usesDir())
	if err != nil {
		return nil, err
	}
	return s.readUses(names, clean)
}

// readUses is listUses for some files.
func (s Store) readUses(names []string, clean bool) (uses [][]byte, err error) {
	for _, name := range names {
		path := filepath.Join(s.usesDir(), name)
		ended, err := lock.TryOpen(path, lock.Exclusive)
		switch {
		case err == nil:
			if clean {
				err = removeIfThere(path)
			}
			if err := errors.Join(err, ended.Close()); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, os.ErrNotExist):
			continue
		case !errors.Is(err, lock.ErrBusy):
			return nil, err
		}
		data, err := smallfile.Read(path, maxUse)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		uses = append(uses, data)
	}
	return uses, nil
}
