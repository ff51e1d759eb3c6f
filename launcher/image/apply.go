package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/log"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/sirupsen/logrus"
)

// maxLayer is the default of Store.MaxLayer, 256 GiB.
const maxLayer = 256 << 30

// zstdWindow is the largest window that is decompressed, that of "zstd --long".
const zstdWindow = 128 << 20

// apply unpacks one blob into dir. What is in dir is anybody's until it returns.
func (s Store) apply(ctx context.Context, dir string, blob *os.File, l layer, below []string, p *meter) error {
	return readLayer(ctx, blob, l, p, func(files io.Reader) error {
		if _, err := archive.Apply(quiet(ctx), dir, files, s.options(below)...); err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		return nil
	})
}

// readLayer reads a blob once, hands its content to use, and compares the digests
// of both at the end.
func readLayer(ctx context.Context, f *os.File, l layer, p *meter, use func(io.Reader) error) error {
	if err := knownLayer(l.blob.MediaType); err != nil {
		return err
	}
	blob := l.blob.Digest.verifier()
	compressed := &counter{ctx: ctx, r: io.TeeReader(io.LimitReader(f, l.blob.Size+1), blob), add: p.add}
	content, closeContent, err := decompress(compressed)
	if err != nil {
		return err
	}
	defer closeContent()
	diff := l.diff.verifier()
	files := io.TeeReader(content, diff)
	if err := use(files); err != nil {
		return err
	}
	// What follows the archive's end counts for the digests. A decompressor may
	// stop before the blob does.
	if _, err := io.Copy(io.Discard, files); err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	if _, err := io.Copy(io.Discard, compressed); err != nil {
		return fmt.Errorf("read blob: %w", err)
	}
	switch {
	case compressed.n != l.blob.Size || !blob.verified():
		return errors.New("blob is corrupt: it has another size or digest")
	case !diff.verified():
		return fmt.Errorf("content is not %s, as the image says", l.diff)
	}
	return nil
}

// quiet keeps the archive package from writing to our standard error what it
// leaves out: attributes that a layer may not set, or the file system can't.
func quiet(ctx context.Context) context.Context {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return log.WithLogger(ctx, logrus.NewEntry(l))
}

func knownLayer(mediaType string) error {
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

// options of one application: whiteouts become overlayfs's, directories that
// aren't described look like those below, and no more than the limit is written.
// Device nodes are left out: a container's devices never come from its image,
// and overlayfs takes node 0:0 for a whiteout.
func (s Store) options(below []string) []archive.ApplyOpt {
	limit := s.MaxLayer
	if limit <= 0 {
		limit = maxLayer
	}
	left := limit
	filter := func(h *tar.Header) (bool, error) {
		// Sizes are what will be written, which can be more than what was read.
		if left -= h.Size + 4096; left < 0 { // an empty file takes room too
			return false, fmt.Errorf("its files need more than the %d bytes that a layer may have", limit)
		}
		return h.Typeflag != tar.TypeChar && h.Typeflag != tar.TypeBlock, nil
	}
	return []archive.ApplyOpt{
		archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
		archive.WithParents(below),
		archive.WithFilter(filter),
	}
}

// decompress goes by the first bytes: media types are wrong too often.
func decompress(r io.Reader) (io.Reader, func(), error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, fmt.Errorf("decompress: %w", err)
		}
		return z, func() { _ = z.Close() }, nil // Close reports what Read did
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, nil, fmt.Errorf("decompress: %w", err)
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}

// counter counts what was read, until its context ends.
type counter struct {
	ctx context.Context
	r   io.Reader
	n   int64
	add func(int)
}

func (c *counter) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.add(n)
	return n, err
}

// meter turns bytes into reports, at most one for each MiB.
type meter struct {
	report func(Progress)
	layer  string
	done   int64
	told   int64
	total  int64
}

// begin starts with a layer. What there is to do is counted when there is any.
func (m *meter) begin(l layer, total func() int64) {
	m.layer = string(l.diff)
	if m.total == 0 {
		m.total = total()
	}
}

func (m *meter) add(n int) {
	m.done += int64(n)
	if m.report != nil && (m.done-m.told >= 1<<20 || m.told == 0) {
		m.told = m.done
		m.report(Progress{Layer: m.layer, Done: m.done, Total: m.total})
	}
}

func (m *meter) waiting() {
	if m.report != nil {
		m.report(Progress{Layer: m.layer, Done: m.done, Total: m.total, Waiting: true})
	}
}
