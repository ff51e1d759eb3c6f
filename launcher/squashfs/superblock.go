package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Superblock is squashfs_super_block of Linux's fs/squashfs/squashfs_fs.h, which has 96 bytes. It is little-endian
// (Documentation/filesystems/squashfs.rst).
type Superblock struct {
	Magic       [4]byte
	Inodes      uint32
	MkfsTime    uint32
	BlockSize   uint32
	Fragments   uint32
	Compression uint16
	BlockLog    uint16
	Flags       uint16
	IDs         uint16
	Major       uint16
	Minor       uint16
	RootInode   uint64
	BytesUsed   uint64
	// Offsets of tables, in bytes.
	IDTable, XattrTable, InodeTable, DirectoryTable, FragmentTable, ExportTable uint64
}

const superblockSize = 96

// Linux mounts squashfs with blocks of one page (4 KiB on most machines) to 1 MiB (SQUASHFS_FILE_MAX_SIZE).
const minBlockLog, maxBlockLog = 12, 20

// ReadSuperblock reads and checks the superblock of a squashfs that fills a partition. Errors continue a phrase whose subject is the file system.
func ReadSuperblock(partition *io.SectionReader) (s Superblock, err error) {
	if partition.Size() < superblockSize {
		return s, errors.New("is too small for a squashfs")
	}
	if err := binary.Read(io.NewSectionReader(partition, 0, superblockSize), binary.LittleEndian, &s); err != nil {
		return s, fmt.Errorf("has no superblock: %w", err)
	}
	if string(s.Magic[:]) != "hsqs" {
		return s, errors.New("is no squashfs, but the file says that it is one")
	}
	if s.Major != 4 || s.Minor != 0 {
		return s, fmt.Errorf("is squashfs %d.%d: Linux reads version 4.0", s.Major, s.Minor)
	}
	if s.BlockLog < minBlockLog || s.BlockLog > maxBlockLog || s.BlockSize != 1<<s.BlockLog {
		return s, fmt.Errorf("is a squashfs with an invalid block size (%d, log %d)", s.BlockSize, s.BlockLog)
	}
	if s.BytesUsed < superblockSize || s.BytesUsed > uint64(partition.Size()) { //nolint:gosec // not negative
		return s, fmt.Errorf("is a squashfs of %d bytes in a partition of %d bytes", s.BytesUsed, partition.Size())
	}
	if s.Compressor() == "" {
		return s, fmt.Errorf("is a squashfs with an unknown compressor (%d)", s.Compression)
	}
	return s, nil
}

// Compressor returns the name that mksquashfs has for the compressor: "gzip", "lzma", "lzo", "xz", "lz4" or "zstd"; "" for an unknown one.
func (s Superblock) Compressor() string {
	// ZLIB_COMPRESSION and the following of squashfs_fs.h.
	names := []string{"", "gzip", "lzma", "lzo", "xz", "lz4", "zstd"}
	if int(s.Compression) >= len(names) {
		return ""
	}
	return names[s.Compression]
}
