package sif

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sylabs/sif/v2/pkg/sif"
)

// The header is the struct header of github.com/sylabs/sif/v2/pkg/sif/sif.go, a descriptor is rawDescriptor of
// descriptor.go; both are little-endian, without padding.
const (
	headerSize     = 128
	descriptorSize = 585

	magicOffset   = 32 // after the launch script, such as "#!/usr/bin/env run-singularity\n"
	magic         = "SIF_MAGIC\x00"
	versionOffset = magicOffset + len(magic)
	version       = "01\x00"

	totalOffset       = 88  // DescriptorsTotal, int64
	tableOffsetOffset = 96  // DescriptorsOffset, int64
	tableSizeOffset   = 104 // DescriptorsSize, int64
)

// maxDescriptors bounds the descriptors of a file, used and free ones. Apptainer's files have 48; this many take
// 2.4 MB.
const maxDescriptors = 4096

// header is a header that was checked.
type header struct {
	raw                    []byte
	tableOffset, tableSize int64 // the descriptors' place, inside the file
}

// readHeader reads and checks the header of a file with size bytes.
func readHeader(r io.ReaderAt, size int64) (header, error) {
	raw := make([]byte, headerSize)
	n, err := r.ReadAt(raw, 0)
	switch {
	case n < headerSize && !errors.Is(err, io.EOF):
		return header{}, fmt.Errorf("its header: %w", err)
	case n < versionOffset || string(raw[magicOffset:versionOffset]) != magic:
		return header{}, ErrNotSIF
	case n < headerSize:
		return header{}, fmt.Errorf("its header: %w", errTooShort)
	}
	if got := string(raw[versionOffset:][:len(version)]); got != version {
		return header{}, fmt.Errorf("its version of SIF is %q: berth reads version 01", got)
	}
	total, offset, tableSize := int64At(raw, totalOffset), int64At(raw, tableOffsetOffset), int64At(raw, tableSizeOffset)
	if total < 0 || total > maxDescriptors {
		return header{}, fmt.Errorf("its header asks for %d descriptors: berth reads at most %d", total, maxDescriptors)
	}
	h := header{raw: raw, tableOffset: offset, tableSize: total * descriptorSize}
	if tableSize < h.tableSize {
		return header{}, fmt.Errorf("its header has %d descriptors in %d bytes", total, tableSize)
	}
	if !isInside(h.tableOffset, h.tableSize, size) {
		return header{}, errors.New("its descriptors lie outside of the file")
	}
	return h, nil
}

// contents is a file as the library may read it: header and descriptors are those that were checked, and everything else is read from the file. The
// library allocates what the header asks for, and panics if that is too much.
type contents struct {
	sif.ReadWriter // nil: the library doesn't write
	file           io.ReaderAt
	header         header
	table          []byte
}

func (c contents) ReadAt(p []byte, offset int64) (int, error) {
	switch {
	case offset == 0 && len(p) <= len(c.header.raw):
		return copy(p, c.header.raw), nil
	case offset == c.header.tableOffset && len(p) <= len(c.table):
		return copy(p, c.table), nil
	}
	return c.file.ReadAt(p, offset)
}

// loadDescriptors reads the descriptors once, and lets the library decode them. Objects are read from the file when they are asked for.
func loadDescriptors(r io.ReaderAt, h header) (*sif.FileImage, error) {
	c := contents{file: r, header: h, table: make([]byte, h.tableSize)}
	if err := readFull(r, c.table, h.tableOffset); err != nil {
		return nil, fmt.Errorf("its descriptors: %w", err)
	}
	return sif.LoadContainer(c)
}

// checkPlaces returns an error if an object lies outside of the file, or if objects, header and descriptors overlap.
func checkPlaces(h header, objects []Object, size int64) error {
	type place struct {
		from, to int64
		what     string
	}
	places := []place{{0, headerSize, "the header"}, {h.tableOffset, h.tableOffset + h.tableSize, "the descriptors"}}
	for _, o := range objects {
		// An empty object at the end can have an aligned offset beyond it.
		if o.Offset >= 0 && o.Size == 0 {
			continue
		}
		what := fmt.Sprintf("object %d", o.ID)
		if !isInside(o.Offset, o.Size, size) {
			return fmt.Errorf("its %s lies outside of the file", what)
		}
		places = append(places, place{o.Offset, o.Offset + o.Size, what})
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(places); i++ {
		if places[i].from < places[i-1].to {
			return fmt.Errorf("its parts overlap: %s and %s", places[i-1].what, places[i].what)
		}
	}
	return nil
}

// isInside reports whether size bytes at offset lie in a file with fileSize bytes. If so, offset+size doesn't overflow.
func isInside(offset, size, fileSize int64) bool {
	return offset >= 0 && size >= 0 && offset <= fileSize && size <= fileSize-offset
}

// errTooShort means that a file is shorter than it was, or than its format asks for.
var errTooShort = errors.New("the file ends too early")

func int64At(b []byte, offset int) int64 { return int64(binary.LittleEndian.Uint64(b[offset:])) }

// readFull is ReadAt of all of b. The end of the file is an unexpected one.
func readFull(r io.ReaderAt, b []byte, offset int64) error {
	n, err := r.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errTooShort
	}
	return err
}
