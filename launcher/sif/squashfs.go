package sif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// superblock is the start of squashfs_super_block of Linux's fs/squashfs/squashfs_fs.h, which has 96 bytes. It is little-endian
// (Documentation/filesystems/squashfs.rst).
type superblock struct {
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
	_           [6]uint64 // offsets of tables
}

const superblockSize = 96

// Linux mounts squashfs with blocks of one page (4 KiB on most machines) to 1 MiB (SQUASHFS_FILE_MAX_SIZE).
const minBlockLog, maxBlockLog = 12, 20

// readSuperblock checks the superblock of a squashfs that fills a partition, and returns the name of its compressor.
// Errors continue a phrase whose subject is the file system.
func readSuperblock(partition *io.SectionReader) (compressor string, err error) {
	var s superblock
	if partition.Size() < superblockSize {
		return "", errors.New("is too small for a squashfs")
	}
	if err := binary.Read(partition, binary.LittleEndian, &s); err != nil {
		return "", fmt.Errorf("has no superblock: %w", err)
	}
	if string(s.Magic[:]) != "hsqs" {
		return "", errors.New("is no squashfs, but the file says that it is one")
	}
	if s.Major != 4 || s.Minor != 0 {
		return "", fmt.Errorf("is squashfs %d.%d: Linux reads version 4.0", s.Major, s.Minor)
	}
	if s.BlockLog < minBlockLog || s.BlockLog > maxBlockLog || s.BlockSize != 1<<s.BlockLog {
		return "", fmt.Errorf("is a squashfs with an invalid block size (%d, log %d)", s.BlockSize, s.BlockLog)
	}
	if s.BytesUsed < superblockSize || s.BytesUsed > uint64(partition.Size()) {
		return "", fmt.Errorf("is a squashfs of %d bytes in a partition of %d bytes", s.BytesUsed, partition.Size())
	}
	// ZLIB_COMPRESSION and the following of squashfs_fs.h.
	names := []string{"", "gzip", "lzma", "lzo", "xz", "lz4", "zstd"}
	if s.Compression == 0 || int(s.Compression) >= len(names) {
		return "", fmt.Errorf("is a squashfs with an unknown compressor (%d)", s.Compression)
	}
	return names[s.Compression], nil
}
