// Package squashfs lists the files of a squashfs 4.0 for a program that unpacks it. File systems are written by strangers: each position, size
// and count is checked before it is used, and the memory that is needed doesn't depend on what the file system says.
//
// The format is that of Linux's fs/squashfs/squashfs_fs.h. Blocks compressed with gzip, zstd, xz and lz4 are read. Owners and extended attributes
// aren't: the files of an image belong to the user that unpacks it.
package squashfs

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// ErrCompressor means that blocks are compressed by another compressor than those that are read.
var ErrCompressor = errors.New("berth itself reads gzip, zstd, xz without filters, and lz4")

// Limits of a file system.
const (
	maxEntries = 16 << 20 // files, with all their names
	maxPath    = 4095     // bytes of a path, as in Linux
	maxLinked  = 64 << 20 // bytes of the names of files with several names
)

// Walk calls add for each file of the squashfs in a partition, directories before the files in them, as the entry of a tar archive. The content of a regular file may be
// read until add returns. Devices and sockets are omitted. The names of a file after the first are hard links.
func Walk(ctx context.Context, partition *io.SectionReader, add func(h *tar.Header, content io.Reader) error) error {
	s, err := ReadSuperblock(partition)
	if err != nil {
		return err
	}
	r := &reader{Superblock: s, r: partition, packed: make([]byte, max(s.BlockSize, metadataSize)), blocks: map[int64]metadataBlock{}}
	if r.unpack, err = newDecompressor(s.Compressor()); err != nil {
		return err
	}
	if err := s.checkFilters(partition); err != nil {
		return err
	}
	w := &walk{reader: r, ctx: ctx, add: add, linked: map[uint64]string{}, block: make([]byte, s.BlockSize), zeros: make([]byte, s.BlockSize)}
	root, err := r.readInode(s.RootInode)
	if err == nil && root.kind != kindDirectory {
		err = errors.New("its root is no directory")
	}
	if err != nil {
		return err
	}
	return w.walkDirectory("", root, []uint64{s.RootInode})
}

// walk is one call of Walk.
type walk struct {
	*reader
	ctx          context.Context
	add          func(h *tar.Header, content io.Reader) error
	linked       map[uint64]string // the first name of an inode with several
	linkedNames  int               // their length in bytes
	block, zeros []byte
}

// walkDirectory adds the files of a directory. above are the inodes of this directory and of those that it is in.
func (w *walk) walkDirectory(dir string, d inode, above []uint64) error {
	const empty = 3 // the size of an empty directory; the format counts two names that it doesn't have
	if d.size <= empty {
		return nil
	}
	left := int64(d.size) - empty //nolint:gosec // below 1<<32
	c, err := w.openCursor(w.DirectoryTable, uint64(d.listBlock), d.listOffset)
	if err != nil {
		return err
	}
	for left > 0 {
		var head struct{ Count, Block, Inode uint32 }
		if err := c.decode(&head); err != nil {
			return err
		}
		const maxCount = 256
		if head.Count >= maxCount {
			return fmt.Errorf("directory %q: %d files behind one header", dir, head.Count)
		}
		left -= int64(binary.Size(head))
		for range head.Count + 1 {
			var e struct {
				Offset         uint16
				_              int16
				Kind, NameSize uint16
			}
			if err := c.decode(&e); err != nil {
				return err
			}
			const maxName = 256
			if e.NameSize >= maxName {
				return fmt.Errorf("directory %q: a name has %d bytes", dir, e.NameSize+1)
			}
			name := make([]byte, e.NameSize+1)
			if err := c.readFull(name); err != nil {
				return err
			}
			left -= int64(binary.Size(e)) + int64(len(name))
			if err := w.walkEntry(dir, string(name), uint64(head.Block)<<16|uint64(e.Offset), above); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkEntry adds a file, and those in it.
func (w *walk) walkEntry(dir, name string, ref uint64, above []uint64) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	if w.entries++; w.entries > maxEntries {
		return fmt.Errorf("it has more than %d files", maxEntries)
	}
	if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("directory %q: %q is no name", dir, name)
	}
	full := path.Join(dir, name)
	if len(full) > maxPath {
		return fmt.Errorf("a path has %d bytes: %.80q…", len(full), full)
	}
	i, err := w.readInode(ref)
	if err != nil {
		return fmt.Errorf("%q: %w", full, err)
	}
	h := &tar.Header{Name: full, Mode: int64(i.mode & 0o7777), ModTime: time.Unix(int64(i.mtime), 0)}
	switch i.kind {
	case kindDirectory:
		for _, a := range above {
			if a == ref {
				return fmt.Errorf("directory %q is in itself", full)
			}
		}
		h.Typeflag = tar.TypeDir
		if err := w.add(h, nil); err != nil {
			return err
		}
		return w.walkDirectory(full, i, append(above, ref))
	case kindFile:
		return w.walkFile(h, i, ref)
	case kindSymlink:
		target := make([]byte, i.size)
		if err := i.rest.readFull(target); err != nil {
			return fmt.Errorf("%q: %w", full, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(target)
		return w.add(h, nil)
	case kindFIFO:
		h.Typeflag = tar.TypeFifo
		return w.add(h, nil)
	}
	return nil
}

func (w *walk) walkFile(h *tar.Header, i inode, ref uint64) error {
	if i.links > 1 {
		if first, found := w.linked[ref]; found {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return w.add(h, nil)
		}
		if w.linkedNames += len(h.Name); w.linkedNames > maxLinked {
			return fmt.Errorf("the files with several names have names of more than %d bytes", maxLinked)
		}
		w.linked[ref] = h.Name
	}
	h.Typeflag, h.Size = tar.TypeReg, int64(i.size) //nolint:gosec // readInode checks it
	return w.add(h, &content{walk: w, sizes: i.rest, at: i.start, left: h.Size, fragment: i.fragment, fragmentOffset: i.fragmentOffset})
}
