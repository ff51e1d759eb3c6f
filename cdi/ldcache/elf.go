package ldcache

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
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

// maxDynamic bounds what SONAME reads of a library beside its headers.
const maxDynamic = 16 << 20

// SONAME reads what a shared library says of itself. Errors are ErrNotLibrary.
// It is meant for the host's own files: of a hostile one it reads no more than
// some megabytes, but nothing that the file says of itself has to be true.
func SONAME(r io.ReaderAt) (Library, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return Library{}, fmt.Errorf("%w: %w", ErrNotLibrary, err)
	}
	if f.Type != elf.ET_DYN {
		return Library{}, fmt.Errorf("%w: ELF file of type %v", ErrNotLibrary, f.Type)
	}
	if err := checkDynamic(f); err != nil {
		return Library{}, err
	}
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil {
		return Library{}, fmt.Errorf("%w: read soname: %w", ErrNotLibrary, err)
	}
	l := Library{Class: f.Class, Machine: f.Machine}
	if len(names) > 0 {
		l.SONAME = names[0]
	}
	if len(l.SONAME) > maxName {
		return Library{}, fmt.Errorf("%w: soname of %d bytes", ErrNotLibrary, len(l.SONAME))
	}
	return l, nil
}

// checkDynamic makes sure that there is a dynamic section, and that it and its
// strings are small and stored as they are.
func checkDynamic(f *elf.File) error {
	dynamic := f.SectionByType(elf.SHT_DYNAMIC)
	if dynamic == nil || int(dynamic.Link) >= len(f.Sections) {
		return fmt.Errorf("%w: no dynamic section", ErrNotLibrary)
	}
	for _, s := range []*elf.Section{dynamic, f.Sections[dynamic.Link]} {
		if s.FileSize > maxDynamic || s.Size > maxDynamic || s.Flags&elf.SHF_COMPRESSED != 0 {
			return fmt.Errorf("%w: odd section %s", ErrNotLibrary, s.Name)
		}
	}
	return nil
}
