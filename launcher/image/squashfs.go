package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/launcher/image/layertree"
	"github.com/berth-gpu/berth/launcher/squashfs"
)

// OpenSquashfs opens the squashfs in a part of a file as an image of one layer, which Unpack unpacks. name is the image's. The file must stay open until
// the image is closed. Other users may change the file meanwhile: an unpacked layer has the content of its digest all the same.
//
// The layer is found by the identity of the file, as in fileProof, or else by the digest of the squashfs, which is then read to its end. report may be nil.
func (s Store) OpenSquashfs(ctx context.Context, f *os.File, at, size int64, name string, report func(done, total int64)) (*Image, error) {
	o := &squashfsOrigin{file: f, at: at, size: size, proof: fileProof(f, "squashfs", at)}
	chain := s.findLayer(o.proof)
	if chain == "" {
		if err := o.readSums(ctx, report); err != nil {
			return nil, fmt.Errorf("read image %s: %w", name, err)
		}
		chain = o.digest()
	}
	return &Image{Name: name, origin: o, layers: []layer{{blob: descriptor{Size: size}, diff: chain, chain: chain}}}, nil
}

// HasSquashfs reports whether OpenSquashfs finds the layer without reading the file.
func (s Store) HasSquashfs(f *os.File, at int64) bool {
	return s.findLayer(fileProof(f, "squashfs", at)) != ""
}

// findLayer returns the chain id of a layer that has a proof, "" if there is none.
func (s Store) findLayer(proof string) digest {
	if proof == "" {
		return ""
	}
	for _, home := range s.listLayerDirs() {
		if pathExists(proofPath(home, proof)) {
			return digest(filepath.Base(filepath.Dir(home)) + ":" + filepath.Base(home))
		}
	}
	return ""
}

// squashfsOrigin is a squashfs in a part of a file.
type squashfsOrigin struct {
	file     *os.File
	at, size int64
	proof    string
	sums     [][sha256.Size]byte // of the parts of chunkSize bytes; nil if they weren't read
}

// chunkSize is the size in bytes of the parts of a squashfs that are verified when they are read.
const chunkSize = 256 << 10

func (o *squashfsOrigin) close() {}

func (o *squashfsOrigin) document(context.Context, descriptor) ([]byte, error) {
	return nil, errors.New("a squashfs has no documents")
}

func (o *squashfsOrigin) layer(_ context.Context, l layer, _ string) (source, error) {
	return source{close: func() {}, proof: o.proof, unpack: func(ctx context.Context, t *layertree.Tree, add func(int)) error {
		if o.sums == nil {
			if err := o.readSums(ctx, nil); err != nil {
				return err
			}
		}
		if o.digest() != l.chain {
			return errChanged
		}
		r := &chunkReader{squashfsOrigin: o, seen: make([]bool, len(o.sums)), add: add}
		return squashfs.Walk(ctx, io.NewSectionReader(r, 0, o.size), func(h *tar.Header, content io.Reader) error { return t.Add(h, content) })
	}}, nil
}

var errChanged = errors.New("the file changes while it is read")

// readSums reads the file and sets sums.
func (o *squashfsOrigin) readSums(ctx context.Context, report func(done, total int64)) error {
	sums := make([][sha256.Size]byte, 0, (o.size+chunkSize-1)/chunkSize)
	buf := make([]byte, chunkSize)
	for at := int64(0); at < o.size; at += chunkSize {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		chunk := buf[:min(chunkSize, o.size-at)]
		if err := o.readChunk(chunk, at); err != nil {
			return err
		}
		sums = append(sums, sha256.Sum256(chunk))
		if report != nil {
			report(at, o.size)
		}
	}
	o.sums = sums
	return nil
}

func (o *squashfsOrigin) readChunk(chunk []byte, at int64) error {
	n, err := o.file.ReadAt(chunk, o.at+at)
	if n == len(chunk) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errChanged // it was longer
	}
	return err
}

// digest returns the chain id of the layer. It depends on the content, and on the rules by which it is unpacked.
func (o *squashfsOrigin) digest() digest {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "squashfs 1 %d\n", o.size) // never fails
	for _, sum := range o.sums {
		_, _ = h.Write(sum[:])
	}
	return digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// chunkReader reads a squashfs whose sums are known. What it returns has these sums, also if the file changes. Only one goroutine may use it.
type chunkReader struct {
	*squashfsOrigin
	seen []bool
	add  func(int) // counts the bytes of a chunk that is read for the first time

	chunks [8]struct {
		index int64 // of the chunk, from 1
		data  []byte
	}
	oldest int
}

// ReadAt implements [io.ReaderAt].
func (r *chunkReader) ReadAt(p []byte, at int64) (n int, err error) {
	for n < len(p) {
		if at >= r.size {
			return n, io.EOF
		}
		chunk, err := r.openChunk(at / chunkSize)
		if err != nil {
			return n, err
		}
		more := copy(p[n:], chunk[at%chunkSize:])
		n, at = n+more, at+int64(more)
	}
	return n, nil
}

// openChunk returns a chunk, which is valid until the next call.
func (r *chunkReader) openChunk(index int64) ([]byte, error) {
	for _, c := range r.chunks {
		if c.index == index+1 {
			return c.data, nil
		}
	}
	c := &r.chunks[r.oldest]
	r.oldest = (r.oldest + 1) % len(r.chunks)
	if c.data == nil {
		c.data = make([]byte, chunkSize)
	}
	c.index = 0
	c.data = c.data[:min(chunkSize, r.size-index*chunkSize)]
	if err := r.readChunk(c.data, index*chunkSize); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(c.data); sum != r.sums[index] {
		return nil, errChanged
	}
	c.index = index + 1
	if !r.seen[index] {
		r.seen[index] = true
		r.add(len(c.data))
	}
	return c.data, nil
}
