package ldcache

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Flags say for which loaders an entry is: the kind of library in the lowest
// byte, the architecture above it, as in glibc's ldconfig.h.
type Flags uint32

// The flags of the architectures that GPU drivers exist for. A 32-bit x86
// library has no architecture of its own in a cache.
const (
	I386    Flags = 0x0003
	X8664   Flags = 0x0303
	PPC64   Flags = 0x0503
	AArch64 Flags = 0x0a03
)

// Library is what a shared library says of itself.
type Library struct {
	// SONAME is "" if the library doesn't give itself a name.
	SONAME  string
	Class   elf.Class
	Machine elf.Machine
}

// Flags returns the flags of a cache's entry for the library; ok is false if
// there are none for its architecture.
func (l Library) Flags() (f Flags, ok bool) {
	switch {
	case l.Class == elf.ELFCLASS32 && l.Machine == elf.EM_386:
		return I386, true
	case l.Class == elf.ELFCLASS64 && l.Machine == elf.EM_X86_64:
		return X8664, true
	case l.Class == elf.ELFCLASS64 && l.Machine == elf.EM_AARCH64:
		return AArch64, true
	case l.Class == elf.ELFCLASS64 && l.Machine == elf.EM_PPC64:
		return PPC64, true
	}
	return 0, false
}

// ErrNotLibrary: the file isn't an ELF shared library.
var ErrNotLibrary = errors.New("not a shared library")

// Limits of what ReadLibrary reads, far above what libraries have.
const (
	maxSegments = 128
	maxDynamic  = 64 << 10 // bytes
	maxOffset   = 1 << 48
)

// ReadLibrary reads SONAME and architecture of a shared library from its segments, as the loader
// does. Errors are ErrNotLibrary. The file may be hostile: at most about 80 KiB of it are read.
func ReadLibrary(r io.ReaderAt) (Library, error) {
	l, err := readLibrary(r)
	if err != nil {
		return Library{}, fmt.Errorf("%w: %w", ErrNotLibrary, err)
	}
	return l, nil
}

func readLibrary(r io.ReaderAt) (Library, error) {
	o, err := openObject(r)
	if err != nil {
		return Library{}, err
	}
	l := Library{Class: o.class, Machine: o.machine}
	name, strings, err := o.findDynamic()
	if err != nil || name == 0 {
		return l, err
	}
	l.SONAME, err = o.readText(strings + name)
	return l, err
}

// object is an ELF file of which the headers were read.
type object struct {
	r        io.ReaderAt
	order    binary.ByteOrder
	class    elf.Class
	machine  elf.Machine
	segments []segment
}

// segment is one program header.
type segment struct {
	kind              elf.ProgType
	off, vaddr, bytes uint64 // bytes of the file
}

func openObject(r io.ReaderAt) (object, error) {
	var ident [elf.EI_NIDENT]byte
	if _, err := r.ReadAt(ident[:], 0); err != nil {
		return object{}, err
	}
	o := object{r: r, class: elf.Class(ident[elf.EI_CLASS]), order: binary.LittleEndian}
	if string(ident[:4]) != elf.ELFMAG {
		return object{}, errors.New("not an ELF file")
	}
	if elf.Data(ident[elf.EI_DATA]) == elf.ELFDATA2MSB {
		o.order = binary.BigEndian
	}
	switch o.class {
	case elf.ELFCLASS64:
		return o.readHeaders64()
	case elf.ELFCLASS32:
		return o.readHeaders32()
	}
	return object{}, fmt.Errorf("ELF file of unknown class %d", o.class)
}

func (o object) readHeaders64() (object, error) {
	var h elf.Header64
	if err := o.readAt(0, &h); err != nil {
		return object{}, err
	}
	if err := o.checkHeader(h.Type, h.Machine, h.Phentsize, h.Phnum, elf.Prog64{}); err != nil {
		return object{}, err
	}
	o.machine = elf.Machine(h.Machine)
	all := make([]elf.Prog64, h.Phnum)
	if err := o.readAt(h.Phoff, all); err != nil {
		return object{}, err
	}
	for _, p := range all {
		o.segments = append(o.segments, segment{elf.ProgType(p.Type), p.Off, p.Vaddr, p.Filesz})
	}
	return o, nil
}

func (o object) readHeaders32() (object, error) {
	var h elf.Header32
	if err := o.readAt(0, &h); err != nil {
		return object{}, err
	}
	if err := o.checkHeader(h.Type, h.Machine, h.Phentsize, h.Phnum, elf.Prog32{}); err != nil {
		return object{}, err
	}
	o.machine = elf.Machine(h.Machine)
	all := make([]elf.Prog32, h.Phnum)
	if err := o.readAt(uint64(h.Phoff), all); err != nil {
		return object{}, err
	}
	for _, p := range all {
		o.segments = append(o.segments, segment{elf.ProgType(p.Type), uint64(p.Off), uint64(p.Vaddr), uint64(p.Filesz)})
	}
	return o, nil
}

func (o object) checkHeader(kind, machine, size, count uint16, header any) error {
	switch {
	case elf.Type(kind) != elf.ET_DYN:
		return fmt.Errorf("ELF file of type %v for %v", elf.Type(kind), elf.Machine(machine))
	case int(size) != binary.Size(header) || count > maxSegments:
		return fmt.Errorf("%d program headers of %d bytes", count, size)
	}
	return nil
}

// findDynamic returns the addresses of the SONAME in the strings, 0 if there is none,
// and of the strings.
func (o object) findDynamic() (name, strings uint64, err error) {
	i := slices.IndexFunc(o.segments, func(s segment) bool { return s.kind == elf.PT_DYNAMIC })
	if i < 0 {
		return 0, 0, errors.New("no dynamic section")
	}
	if o.segments[i].bytes > maxDynamic {
		return 0, 0, fmt.Errorf("dynamic section of %d bytes", o.segments[i].bytes)
	}
	tags, err := o.readTags(o.segments[i])
	if err != nil {
		return 0, 0, err
	}
	for _, t := range tags {
		switch elf.DynTag(t.Tag) {
		case elf.DT_NULL:
			return name, strings, nil
		case elf.DT_SONAME:
			name = t.Val
		case elf.DT_STRTAB:
			strings = t.Val
		}
	}
	return name, strings, nil
}

func (o object) readTags(s segment) ([]elf.Dyn64, error) {
	if o.class == elf.ELFCLASS64 {
		tags := make([]elf.Dyn64, s.bytes/uint64(binary.Size(elf.Dyn64{})))
		return tags, o.readAt(s.off, tags)
	}
	short := make([]elf.Dyn32, s.bytes/uint64(binary.Size(elf.Dyn32{})))
	if err := o.readAt(s.off, short); err != nil {
		return nil, err
	}
	tags := make([]elf.Dyn64, len(short))
	for i, t := range short {
		tags[i] = elf.Dyn64{Tag: int64(t.Tag), Val: uint64(t.Val)}
	}
	return tags, nil
}

// readText reads the string at an address.
func (o object) readText(addr uint64) (string, error) {
	i := slices.IndexFunc(o.segments, func(s segment) bool {
		return s.kind == elf.PT_LOAD && addr >= s.vaddr && addr-s.vaddr < s.bytes
	})
	if i < 0 {
		return "", errors.New("its name is in no segment")
	}
	s := o.segments[i]
	name := make([]byte, min(maxName+1, s.bytes-(addr-s.vaddr)))
	if err := o.readBytes(s.off+(addr-s.vaddr), name); err != nil {
		return "", err
	}
	end := bytes.IndexByte(name, 0)
	if end < 0 {
		return "", fmt.Errorf("soname of more than %d bytes", maxName)
	}
	return string(name[:end]), nil
}

func (o object) readAt(off uint64, v any) error {
	data := make([]byte, binary.Size(v))
	if err := o.readBytes(off, data); err != nil {
		return err
	}
	_, err := binary.Decode(data, o.order, v)
	return err
}

func (o object) readBytes(off uint64, data []byte) error {
	if off > maxOffset {
		return fmt.Errorf("offset %#x", off)
	}
	n, err := o.r.ReadAt(data, int64(off))
	if n == len(data) {
		return nil
	}
	return err
}
