package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// proofLimit is the most files that are remembered of one layer.
const proofLimit = 256

// proof is the file in the store that stands for the layer's blob having been
// read from f and found right, or "". It is named by what changes when f does:
// a file's change time can't be set, so no other file of f's file system has it.
func (s Store) proof(l layer, f *os.File) string {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return ""
	}
	key := fmt.Sprintf("%s %d %d %d %d.%09d", l.blob.Digest, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	return filepath.Join(s.home(l), "known", fmt.Sprintf("%x", sha256.Sum256([]byte(key))))
}

// prove lets an image use a layer that somebody else unpacked: it must have the
// layer itself, and not merely name it. Its blob is read once for that.
func (s Store) prove(ctx context.Context, f *os.File, l layer, p *meter) error {
	proof := s.proof(l, f)
	if exists(proof) {
		return nil
	}
	if err := readLayer(ctx, f, l, p, func(io.Reader) error { return nil }); err != nil {
		return fmt.Errorf("check layer %s: %w", l.blob.Digest, err)
	}
	return remember(proof)
}

// remember forgets everything when there is too much: it is only read again.
func remember(proof string) error {
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
