package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// reader reads blocks of a squashfs. Its buffers are as large as the format allows for a block.
type reader struct {
	Superblock
	r       io.ReaderAt
	unpack  decompressor
	packed  []byte
	blocks  map[int64]metadataBlock // some that were read, by position
	entries int

	fragment   []byte // the last fragment block that was read
	fragmentAt int64  // its position; 0 for none
}

// metadataSize is the size of a metadata block in bytes, except for the last one of a table.
const metadataSize = 8192

// maxBlocks bounds reader.blocks.
const maxBlocks = 128

type metadataBlock struct {
	data []byte
	next int64 // position of the next block
}

// decompressor decompresses a block into buf, and returns how many bytes it has. More than len(buf) are an error.
type decompressor func(packed, buf []byte) (int, error)

var errBlockTooLarge = errors.New("a block has more bytes than its format allows")

func newDecompressor(name string) (decompressor, error) {
	switch name {
	case "gzip":
		var z io.ReadCloser
		return func(packed, buf []byte) (n int, err error) {
			if z == nil {
				z, err = zlib.NewReader(bytes.NewReader(packed))
			} else if r, ok := z.(zlib.Resetter); ok {
				err = r.Reset(bytes.NewReader(packed), nil)
			}
			if err != nil {
				return 0, err
			}
			n, err = io.ReadFull(z, buf)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return n, nil // a stream that was cut off is found by its size
			}
			var more [1]byte
			if n, _ := z.Read(more[:]); err == nil && n > 0 {
				err = errBlockTooLarge
			}
			return n, err
		}, nil
	case "zstd":
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
		return func(packed, buf []byte) (int, error) {
			out, err := z.DecodeAll(packed, buf[:0:len(buf)])
			return len(out), err
		}, err
	case "lz4":
		return lz4.UncompressBlock, nil
	case "xz":
		return unpackXZ, nil
	}
	return nil, fmt.Errorf("its files are compressed with %s: %w", name, ErrCompressor)
}

// CheckCompressor returns an error that is ErrCompressor for a squashfs in a partition whose blocks can't be read.
func CheckCompressor(partition *io.SectionReader) error {
	s, err := ReadSuperblock(partition)
	if err != nil {
		return err
	}
	if _, err := newDecompressor(s.Compressor()); err != nil {
		return err
	}
	return s.checkFilters(partition)
}

// readBlock reads and decompresses a block of size bytes into buf, and returns how many bytes it has.
func (r *reader) readBlock(at int64, size int, isPacked bool, buf []byte) (int, error) {
	if at < superblockSize || at > int64(r.BytesUsed) || int64(size) > int64(r.BytesUsed)-at { //nolint:gosec // BytesUsed is at most the partition's size
		return 0, fmt.Errorf("a block of %d bytes at %d isn't in the file system", size, at)
	}
	if !isPacked {
		if size > len(buf) {
			return 0, errBlockTooLarge
		}
		_, err := r.r.ReadAt(buf[:size], at)
		return size, err
	}
	if size > len(r.packed) { // a compressed block is never larger than its content
		return 0, errBlockTooLarge
	}
	if _, err := r.r.ReadAt(r.packed[:size], at); err != nil {
		return 0, err
	}
	n, err := r.unpack(r.packed[:size], buf)
	if err != nil {
		return 0, fmt.Errorf("block at %d: %w", at, err)
	}
	return n, nil
}

// readMetadata returns the metadata block at a position.
func (r *reader) readMetadata(at int64) (metadataBlock, error) {
	if b, found := r.blocks[at]; found {
		return b, nil
	}
	const header = 2
	var head [header]byte
	if _, err := r.readBlock(at, header, false, head[:]); err != nil {
		return metadataBlock{}, err
	}
	h := binary.LittleEndian.Uint16(head[:])
	size := int(h & 0x7fff)
	if size == 0 || size > metadataSize {
		return metadataBlock{}, fmt.Errorf("a metadata block at %d has %d bytes", at, size)
	}
	buf := make([]byte, metadataSize)
	n, err := r.readBlock(at+header, size, h&0x8000 == 0, buf)
	if err != nil {
		return metadataBlock{}, err
	}
	if len(r.blocks) >= maxBlocks {
		clear(r.blocks)
	}
	b := metadataBlock{buf[:n], at + header + int64(size)}
	r.blocks[at] = b
	return b, nil
}

// cursor is a place in the metadata, which goes on in the next block.
type cursor struct {
	r    *reader
	next int64
	rest []byte
}

// openCursor returns the place offset bytes behind the start of the metadata block at block bytes of a table.
func (r *reader) openCursor(table uint64, block uint64, offset uint16) (c cursor, err error) {
	if table > r.BytesUsed || block > r.BytesUsed {
		return c, fmt.Errorf("a table at %d isn't in the file system", table)
	}
	b, err := r.readMetadata(int64(table + block)) //nolint:gosec // readBlock checks it
	if err == nil && int(offset) > len(b.data) {
		err = fmt.Errorf("a place at %d isn't in its metadata block", offset)
	}
	if err != nil {
		return c, err
	}
	return cursor{r, b.next, b.data[offset:]}, nil
}

// readFull fills p.
func (c *cursor) readFull(p []byte) error {
	for len(p) > 0 {
		if len(c.rest) == 0 {
			b, err := c.r.readMetadata(c.next)
			if err != nil {
				return err
			}
			c.rest, c.next = b.data, b.next
		}
		n := copy(p, c.rest)
		p, c.rest = p[n:], c.rest[n:]
	}
	return nil
}

// decode reads a value of fixed size.
func (c *cursor) decode(v any) error {
	b := make([]byte, binary.Size(v))
	if err := c.readFull(b); err != nil {
		return err
	}
	_, err := binary.Decode(b, binary.LittleEndian, v)
	return err
}
