package ldcache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// The format, in bytes. Offsets of strings count from the header of the new
// format, those of the extensions from the beginning of the file.
const (
	oldMagic  = "ld.so-1.7.0"
	oldHeader = 16 // magic, padding, number of entries
	oldEntry  = 12 // flags, name, path

	magic      = "glibc-ld.so.cache1.1"
	header     = 48 // magic, entries, size of strings, flags, extensions, unused
	entry      = 24 // flags, name, path, OS version, hwcap (8)
	alignment  = 8  // of the new header behind the old format
	littleFlag = 2  // in the flags: little-endian; 0 is what glibc before 2.32 wrote

	extensionMagic  = 0xeaa42174
	extensionHeader = 8  // magic, number of sections
	section         = 16 // tag, flags, offset, size
	tagGenerator    = 0
	tagHWCaps       = 1
)

// Parse reads a loader cache. Data without a byte is a cache without entries, as
// it is for ldconfig. Errors are ErrFormat. Extensions of unknown kinds are left
// out, since what they point to would move. The result doesn't share memory with
// data.
func Parse(data []byte) (Cache, error) {
	switch {
	case len(data) == 0:
		return Cache{}, nil
	case len(data) > MaxSize:
		return Cache{}, errMalformed("%d bytes are more than %d", len(data), MaxSize)
	}
	start, err := findHeader(data)
	if err != nil {
		return Cache{}, err
	}
	p := parser{file: data, text: string(data[start:])}
	if err := p.parseEntries(data[start:]); err != nil {
		return Cache{}, err
	}
	if at := binary.LittleEndian.Uint32(data[start+32:]); at != 0 {
		if err := p.parseExtensions(at); err != nil {
			return Cache{}, err
		}
	}
	return p.cache, nil
}

func errMalformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// findHeader returns where the new format begins, with room for its header.
func findHeader(data []byte) (int, error) {
	start := 0
	if bytes.HasPrefix(data, []byte(oldMagic)) && len(data) >= oldHeader {
		n := uint64(binary.LittleEndian.Uint32(data[12:]))
		end := uint64(oldHeader) + n*oldEntry
		if end > uint64(len(data)) {
			return 0, errMalformed("%d entries of the old format don't fit", n)
		}
		start = int(end+alignment-1) &^ (alignment - 1)
	}
	if len(data) < start+header || !bytes.HasPrefix(data[start:], []byte(magic)) {
		return 0, errMalformed("no %q", magic)
	}
	if flags := data[start+28]; flags != 0 && flags&3 != littleFlag {
		return 0, errMalformed("not little-endian")
	}
	return start, nil
}

type parser struct {
	file  []byte // the whole file
	text  string // from the new header on, where strings are
	cache Cache
}

// parseEntries reads the table behind the header.
func (p *parser) parseEntries(data []byte) error {
	n := int64(binary.LittleEndian.Uint32(data[20:]))
	if n > maxEntries || header+n*entry > int64(len(data)) {
		return errMalformed("%d entries are too many", n)
	}
	p.cache.Entries = make([]Entry, n)
	for i := range p.cache.Entries {
		raw := data[header+i*entry:]
		name, err := p.stringAt(binary.LittleEndian.Uint32(raw[4:]), maxName)
		if err != nil {
			return err
		}
		path, err := p.stringAt(binary.LittleEndian.Uint32(raw[8:]), maxPath)
		if err != nil {
			return err
		}
		p.cache.Entries[i] = Entry{
			Name: name, Path: path,
			Flags:     Flags(binary.LittleEndian.Uint32(raw)),
			OSVersion: binary.LittleEndian.Uint32(raw[12:]),
			HWCap:     binary.LittleEndian.Uint64(raw[16:]),
		}
	}
	return nil
}

// stringAt returns the string at an offset, which ends within longest bytes. All of
// them share one copy of the file, however often a string is pointed to.
func (p *parser) stringAt(offset uint32, longest int) (string, error) {
	if int64(offset) >= int64(len(p.text)) {
		return "", errMalformed("string at %d is outside", offset)
	}
	s := p.text[offset:]
	s = s[:min(len(s), longest+1)]
	end := strings.IndexByte(s, 0)
	if end < 0 {
		return "", errMalformed("string at %d has no end within %d bytes", offset, longest)
	}
	return s[:end], nil
}

// parseExtensions reads the directory at an offset and the sections that are known.
func (p *parser) parseExtensions(at uint32) error {
	dir, err := p.bytesAt(at, extensionHeader)
	if err != nil {
		return err
	}
	if at%4 != 0 || binary.LittleEndian.Uint32(dir) != extensionMagic {
		return errMalformed("no extensions at %d", at)
	}
	n := binary.LittleEndian.Uint32(dir[4:])
	if n > uint32(len(p.file)/section) {
		return errMalformed("%d extensions are too many", n)
	}
	table, err := p.bytesAt(at+extensionHeader, n*section)
	if err != nil {
		return err
	}
	for ; len(table) > 0; table = table[section:] {
		data, err := p.bytesAt(binary.LittleEndian.Uint32(table[8:]), binary.LittleEndian.Uint32(table[12:]))
		if err != nil {
			return err
		}
		switch binary.LittleEndian.Uint32(table) {
		case tagGenerator:
			if len(data) > maxGenerator || bytes.IndexByte(data, 0) >= 0 {
				return errMalformed("odd name of a generator")
			}
			p.cache.Generator = string(data)
		case tagHWCaps:
			if err := p.parseHWCaps(data); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseHWCaps reads the names that entries refer to by number.
func (p *parser) parseHWCaps(data []byte) error {
	if len(data)%4 != 0 || len(data)/4 > maxHWCaps {
		return errMalformed("odd table of hardware capabilities")
	}
	p.cache.HWCaps = nil
	for ; len(data) > 0; data = data[4:] {
		name, err := p.stringAt(binary.LittleEndian.Uint32(data), maxName)
		if err != nil {
			return err
		}
		p.cache.HWCaps = append(p.cache.HWCaps, name)
	}
	return nil
}

// bytesAt returns a part of the file.
func (p *parser) bytesAt(offset, size uint32) ([]byte, error) {
	end := uint64(offset) + uint64(size)
	if end > uint64(len(p.file)) {
		return nil, errMalformed("%d bytes at %d are outside", size, offset)
	}
	return p.file[offset:end], nil
}
