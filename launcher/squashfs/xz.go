package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// Parts of an .xz stream with one block. Source: The .xz File Format 1.2.1 (tukaani.org/xz/xz-file-format.txt).
const (
	xzMagic        = "\xfd7zXZ\x00\x00" // and the first of the two flags, which is reserved
	xzStreamHeader = 12                 // bytes
	xzUnit         = 4                  // parts of a block are multiples of this size in bytes
	xzNoCheck      = 0x00
	xzCRC32        = 0x01
	xzLZMA2        = 0x21 // the filter
	// Flags of a block.
	xzFilters, xzPackedSize, xzSize = 0x03, 0x40, 0x80
)

// errFilters is about an image of mksquashfs -Xbcj.
var errFilters = fmt.Errorf("its files are compressed with xz and a filter for programs (BCJ): %w", ErrCompressor)

var errXZ = errors.New("it is no .xz stream as Linux reads them")

// unpackXZ decompresses a block of a squashfs, which is an .xz stream. As in Linux, it has the check CRC32 or none. The index behind it has nothing that is needed.
//
// It reads the headers itself. The size of the dictionary in a header, which can be 4 GiB, doesn't count: no byte of a block is further back than its beginning, so the
// dictionary has the size of buf.
func unpackXZ(packed, buf []byte) (int, error) {
	check, rest, err := skipXZHeaders(packed)
	if err != nil {
		return 0, err
	}
	data := bytes.NewReader(rest)
	r, err := lzma.Reader2Config{DictCap: max(len(buf), lzma.MinDictCap)}.NewReader2(data)
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(r, buf)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && r.EOS(), errors.Is(err, io.EOF) && r.EOS():
	case err != nil:
		return n, err
	default:
		var more [1]byte
		if n, err := r.Read(more[:]); n > 0 {
			return len(buf), errBlockTooLarge
		} else if !errors.Is(err, io.EOF) {
			return len(buf), err
		}
	}
	if check == xzNoCheck {
		return n, nil
	}
	read := len(packed) - data.Len()
	end := (read + xzUnit - 1) / xzUnit * xzUnit
	if len(packed) < end+crc32.Size || binary.LittleEndian.Uint32(packed[end:]) != crc32.ChecksumIEEE(buf[:n]) {
		return n, errors.New("its checksum is wrong")
	}
	return n, nil
}

// skipXZHeaders checks the headers of a stream and of its first block, and returns the kind of check and what follows.
func skipXZHeaders(packed []byte) (check byte, rest []byte, err error) {
	if len(packed) < xzStreamHeader+1 || string(packed[:len(xzMagic)]) != xzMagic {
		return 0, nil, errXZ
	}
	check = packed[len(xzMagic)]
	if check != xzNoCheck && check != xzCRC32 {
		return 0, nil, errXZ
	}
	size := (int(packed[xzStreamHeader]) + 1) * xzUnit
	if size == xzUnit || len(packed) < xzStreamHeader+size { // the size 0 is that of the index
		return 0, nil, errXZ
	}
	header, rest := packed[xzStreamHeader:xzStreamHeader+size], packed[xzStreamHeader+size:]
	end := size - crc32.Size
	if binary.LittleEndian.Uint32(header[end:]) != crc32.ChecksumIEEE(header[:end]) {
		return 0, nil, errXZ
	}
	flags, fields := header[1], header[2:end]
	if flags&xzFilters != 0 {
		return 0, nil, errFilters
	}
	for _, size := range []byte{xzPackedSize, xzSize} {
		if flags&size == 0 {
			continue
		}
		_, n := binary.Uvarint(fields)
		if n <= 0 {
			return 0, nil, errXZ
		}
		fields = fields[n:]
	}
	if len(fields) == 0 || fields[0] != xzLZMA2 {
		return 0, nil, errXZ
	}
	return check, rest, nil
}

// compressorOptions is the flag of a superblock before whose tables there are options of the compressor.
const compressorOptions = 1 << 10

// checkFilters returns an error for a file system whose data is compressed with xz and a filter. mksquashfs writes its filters into the options of the compressor.
func (s Superblock) checkFilters(partition io.ReaderAt) error {
	if s.Compressor() != "xz" || s.Flags&compressorOptions == 0 {
		return nil
	}
	r := &reader{Superblock: s, r: partition, unpack: unpackXZ, packed: make([]byte, metadataSize), blocks: map[int64]metadataBlock{}}
	c, err := r.openCursor(superblockSize, 0, 0)
	if err != nil {
		return err
	}
	var options struct{ Dictionary, Filters uint32 } // comp_opts of mksquashfs's xz_wrapper.h
	if err := c.decode(&options); err != nil {
		return err
	}
	if options.Filters != 0 {
		return errFilters
	}
	return nil
}
