package squashfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// content is the content of a file.
type content struct {
	*walk
	sizes cursor // of the next block
	at    int64  // the next block
	left  int64  // bytes of the file that were not read
	now   []byte // the rest of the block that is being read

	fragment, fragmentOffset uint32
}

// Read returns bytes of at most one block.
func (f *content) Read(p []byte) (int, error) {
	if len(f.now) == 0 {
		if f.left == 0 {
			return 0, io.EOF
		}
		if f.ctx.Err() != nil {
			return 0, context.Cause(f.ctx)
		}
		var err error
		if f.left < int64(f.BlockSize) && f.fragment != noFragment {
			f.now, err = f.readFragment()
		} else {
			f.now, err = f.readNext()
		}
		if err != nil {
			return 0, err
		}
		f.left -= int64(len(f.now))
	}
	n := copy(p, f.now)
	f.now = f.now[n:]
	return n, nil
}

// Sizes of data blocks have this bit if the block isn't compressed. The bits above are zero.
const plainBlock = 1 << 24

// splitSize returns the size of a block on disk.
func splitSize(word uint32) (size int, isPacked bool, err error) {
	if word >= 2*plainBlock {
		return 0, false, errors.New("a block has an invalid size")
	}
	return int(word &^ plainBlock), word&plainBlock == 0, nil
}

// readNext reads the next block. One of size 0 is a hole.
func (f *content) readNext() ([]byte, error) {
	var word [4]byte
	if err := f.sizes.readFull(word[:]); err != nil {
		return nil, err
	}
	want := int(min(f.left, int64(f.BlockSize)))
	size, isPacked, err := splitSize(binary.LittleEndian.Uint32(word[:]))
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return f.zeros[:want], nil
	}
	n, err := f.readBlock(f.at, size, isPacked, f.block)
	if err == nil && n != want {
		err = fmt.Errorf("a block at %d has %d bytes, not %d", f.at, n, want)
	}
	f.at += int64(size)
	return f.block[:want], err
}

// readFragment reads the end of the file, which is in a block with those of other files.
func (f *content) readFragment() ([]byte, error) {
	if f.fragment >= f.Fragments {
		return nil, fmt.Errorf("a file's end is in fragment %d of %d", f.fragment, f.Fragments)
	}
	const perBlock = metadataSize / 16
	var pointer [8]byte
	if _, err := f.readBlock(int64(f.FragmentTable)+int64(f.fragment/perBlock)*8, len(pointer), false, pointer[:]); err != nil { //nolint:gosec // readBlock checks it
		return nil, err
	}
	c, err := f.openCursor(binary.LittleEndian.Uint64(pointer[:]), 0, uint16(f.fragment%perBlock*16))
	if err != nil {
		return nil, err
	}
	var e struct {
		Start   uint64
		Size, _ uint32
	}
	if err := c.decode(&e); err != nil {
		return nil, err
	}
	if e.Start > f.BytesUsed {
		return nil, fmt.Errorf("a fragment at %d isn't in the file system", e.Start)
	}
	if at := int64(e.Start); f.fragmentAt != at { //nolint:gosec // at most BytesUsed
		size, isPacked, err := splitSize(e.Size)
		if err != nil {
			return nil, err
		}
		buf := f.reader.fragment[:0]
		if buf = buf[:cap(buf)]; len(buf) == 0 {
			buf = make([]byte, f.BlockSize)
		}
		f.fragmentAt = 0
		n, err := f.readBlock(at, size, isPacked, buf)
		if err != nil {
			return nil, err
		}
		f.reader.fragment, f.fragmentAt = buf[:n], at
	}
	end := int64(f.fragmentOffset) + f.left
	if end > int64(len(f.reader.fragment)) {
		return nil, errors.New("a file's end isn't in its fragment")
	}
	return f.reader.fragment[f.fragmentOffset:end], nil
}
