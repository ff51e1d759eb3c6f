package image

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/berth-gpu/berth/launcher/image/layertree"
)

// maxLayer is the default of Store.MaxLayer, 256 GiB.
const maxLayer = 256 << 30

// zstdWindow is the largest window that is decompressed, that of "zstd --long".
const zstdWindow = 128 << 20

// errCorrupt means that a blob doesn't match its digest or size.
var errCorrupt = errors.New("blob is corrupt: it has another size or digest")

// unpackInto unpacks a blob into an empty directory. The content of dir is unverified until unpackInto returns
// nil. below waits for the layers below and returns their directories, topmost first.
func (s Store) unpackInto(ctx context.Context, dir string, src source, l layer, below func() ([]string, error), p *progress) (written int64, err error) {
	t, err := layertree.New(dir, s.maxLayerSize())
	if err != nil {
		return 0, err
	}
	defer t.Close()
	if src.unpack != nil {
		err = src.unpack(ctx, t, func(n int) { p.addBytes(l, n) })
	} else {
		err = readLayer(ctx, src, l, p, s.maxArchiveSize(), t.Apply)
	}
	if err != nil {
		return 0, err
	}
	dirs, err := below()
	if err != nil {
		return 0, err
	}
	return t.Written(), t.Finish(dirs)
}

func (s Store) maxLayerSize() int64 { return cmp.Or(s.MaxLayer, maxLayer) }

// maxArchiveSize returns the limit for the archive of a layer, in bytes, which allows for headers and padding.
func (s Store) maxArchiveSize() int64 { return 2*s.maxLayerSize() + maxJSON }

// readLayer reads a blob once, calls use with its content, and verifies the digests of both at the end. The
// content may have at most limit bytes. If the blob doesn't match its digest, the error Is errCorrupt, whatever
// use has returned.
func readLayer(ctx context.Context, r io.Reader, l layer, p *progress, limit int64, use func(io.Reader) error) error {
	if err := checkLayerType(l.blob.MediaType); err != nil {
		return err
	}
	r = io.LimitReader(r, l.blob.Size+1)
	var blob verifier // archives of docker save have no digests of blobs
	if l.blob.Digest != "" {
		blob = l.blob.Digest.verifier()
		r = io.TeeReader(r, blob)
	}
	compressed := &countingReader{ctx: ctx, r: r, add: func(n int) { p.addBytes(l, n) }}
	err := readContent(compressed, l, limit, use)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The digest covers the whole blob; a decompressor may stop before its end.
	if _, e := io.Copy(io.Discard, compressed); e != nil {
		return fmt.Errorf("read blob: %w", e)
	}
	if compressed.n != l.blob.Size || blob.Hash != nil && !blob.isVerified() {
		return errCorrupt
	}
	return err
}

// readContent calls use with the decompressed content and verifies its digest. A goroutine decompresses.
func readContent(compressed io.Reader, l layer, limit int64, use func(io.Reader) error) error {
	content, closeContent, err := Decompress(compressed)
	if err != nil {
		return err
	}
	defer closeContent()
	diff := l.diff.verifier()
	files := newReadAhead(io.TeeReader(&boundedReader{content, limit}, diff))
	err = use(files)
	if err == nil {
		_, err = io.Copy(io.Discard, files)
	}
	files.stopReading()
	switch {
	case err != nil:
		return err
	case !diff.isVerified():
		return fmt.Errorf("content is not %s, as the image says", l.diff)
	}
	return nil
}

func checkLayerType(mediaType string) error {
	switch mediaType {
	case typeLayer, typeLayer + "+gzip", typeLayer + "+zstd",
		"application/vnd.oci.image.layer.nondistributable.v1.tar",
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
		"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
		"application/vnd.docker.image.rootfs.diff.tar",
		"application/vnd.docker.image.rootfs.diff.tar.gzip",
		"application/vnd.docker.image.rootfs.diff.tar.zstd":
		return nil
	}
	return fmt.Errorf("media type %q is not known", mediaType)
}

// compression is the format of a compressed stream. It is detected by the first bytes, because media types are
// often wrong.
type compression int

const (
	plain compression = iota
	gzipped
	zstandard
)

// magicSize is how many bytes detectCompression needs.
const magicSize = 4

func detectCompression(head []byte) compression {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzipped
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstandard
	}
	return plain
}

// Decompress returns the content of a stream that may be compressed with gzip or zstd. The caller calls done
// when it has finished reading.
func Decompress(r io.Reader) (content io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, err := b.Peek(magicSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch detectCompression(head) {
	case gzipped:
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, fmt.Errorf("decompress: %w", err)
		}
		return z, func() { _ = z.Close() }, nil // Close returns the error of Read
	case zstandard:
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, nil, fmt.Errorf("decompress: %w", err)
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}

// readAheadBuffer reads from a source in the background.
type readAheadBuffer struct {
	full, empty chan []byte
	quit        chan struct{}
	err         error // of the source; valid once full is closed
	now, rest   []byte
}

func newReadAhead(r io.Reader) *readAheadBuffer {
	const buffers, size = 4, 512 << 10
	a := &readAheadBuffer{full: make(chan []byte, buffers), empty: make(chan []byte, buffers), quit: make(chan struct{})}
	for range buffers {
		a.empty <- make([]byte, size)
	}
	go a.readSource(r)
	return a
}

func (a *readAheadBuffer) readSource(r io.Reader) {
	defer close(a.full)
	for a.err == nil {
		select {
		case <-a.quit:
			return
		case b := <-a.empty:
			n := 0
			for n < cap(b) && a.err == nil {
				var more int
				more, a.err = r.Read(b[n:cap(b)])
				n += more
			}
			a.full <- b[:n] // never blocks: full has capacity for all buffers
		}
	}
}

func (a *readAheadBuffer) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.now != nil {
			a.empty <- a.now // never blocks: empty has capacity for all buffers
			a.now = nil
		}
		b, ok := <-a.full
		if !ok {
			return 0, a.err
		}
		a.now, a.rest = b, b
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// stopReading stops the background goroutine and waits for it.
func (a *readAheadBuffer) stopReading() {
	close(a.quit)
	for range a.full {
	}
}

// boundedReader returns an error after left bytes.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.New("its archive is larger than what a layer may have")
	}
	return n, err
}

// countingReader counts the bytes that are read. After the end of its context it returns an error.
type countingReader struct {
	ctx context.Context
	r   io.Reader
	n   int64
	add func(int)
}

func (c *countingReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.add(n)
	return n, err
}
