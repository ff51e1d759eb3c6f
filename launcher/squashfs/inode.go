package squashfs

import (
	"errors"
	"fmt"
	"math"
)

// Kinds of inodes, in their basic form. The extended form of each has a number that is higher by extended.
const (
	kindDirectory = iota + 1
	kindFile
	kindSymlink
	kindBlock
	kindCharacter
	kindFIFO
	kindSocket
	extended = 7
)

// inode is a file's description.
type inode struct {
	kind  int
	mode  uint16
	mtime uint32
	links uint32
	size  uint64 // of a file's content, a link's target, or a directory's list

	listBlock  uint32 // the place of a directory's list in the directory table
	listOffset uint16

	start                    int64 // the first block of a file
	fragment, fragmentOffset uint32

	rest cursor // behind the inode: a file's sizes of blocks, a link's target
}

// noFragment is the index of a file's fragment if the file has none.
const noFragment = math.MaxUint32

// readInode reads the inode of a reference.
func (r *reader) readInode(ref uint64) (i inode, err error) {
	c, err := r.openCursor(r.InodeTable, ref>>16, uint16(ref)) //nolint:gosec // the low 16 bits
	if err != nil {
		return i, err
	}
	var head struct {
		Kind, Mode, UID, GID uint16
		Mtime, Number        uint32
	}
	if err := c.decode(&head); err != nil {
		return i, err
	}
	i = inode{kind: int(head.Kind), mode: head.Mode, mtime: head.Mtime, links: 1, fragment: noFragment}
	switch head.Kind {
	case kindDirectory:
		var d struct {
			Block, Links uint32
			Size, Offset uint16
			Parent       uint32
		}
		err = c.decode(&d)
		i.size, i.listBlock, i.listOffset = uint64(d.Size), d.Block, d.Offset
	case kindDirectory + extended:
		var d struct {
			Links, Size, Block, Parent uint32
			Index, Offset              uint16
			Xattr                      uint32
		}
		err = c.decode(&d)
		i.kind, i.size, i.listBlock, i.listOffset = kindDirectory, uint64(d.Size), d.Block, d.Offset
	case kindFile:
		var f struct{ Start, Fragment, Offset, Size uint32 }
		err = c.decode(&f)
		i.start, i.fragment, i.fragmentOffset, i.size = int64(f.Start), f.Fragment, f.Offset, uint64(f.Size)
	case kindFile + extended:
		var f struct {
			Start, Size, Sparse            uint64
			Links, Fragment, Offset, Xattr uint32
		}
		err = c.decode(&f)
		if f.Size > math.MaxInt64 || f.Start > r.BytesUsed {
			return i, fmt.Errorf("a file of %d bytes at %d", f.Size, f.Start)
		}
		i.kind, i.links, i.start, i.size = kindFile, f.Links, int64(f.Start), f.Size
		i.fragment, i.fragmentOffset = f.Fragment, f.Offset
	case kindSymlink, kindSymlink + extended: // the number of extended attributes is behind the target
		var l struct{ Links, Size uint32 }
		err = c.decode(&l)
		if l.Size == 0 || l.Size > maxPath {
			return i, fmt.Errorf("a symbolic link to a path of %d bytes", l.Size)
		}
		i.kind, i.size = kindSymlink, uint64(l.Size)
	case kindFIFO, kindFIFO + extended:
		i.kind = kindFIFO
	case kindBlock, kindCharacter, kindSocket, kindBlock + extended, kindCharacter + extended, kindSocket + extended:
	default:
		err = errors.New("a file of an unknown kind")
	}
	i.rest = c
	return i, err
}
