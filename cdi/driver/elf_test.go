package driver

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// writeLibrary writes a shared library of this machine with this SONAME.
func writeLibrary(t testing.TB, path, soname string) {
	t.Helper()
	m := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		m = elf.EM_AARCH64
	}
	writeLibraryOf(t, m, path, soname)
}

// writeLibrary32 writes one of 32 bits, for programs of this machine.
func writeLibrary32(t testing.TB, path, soname string) {
	t.Helper()
	m := elf.EM_386
	if runtime.GOARCH == "arm64" {
		m = elf.EM_ARM
	}
	writeLibraryOf(t, m, path, soname)
}

func writeLibraryOf(t testing.TB, m elf.Machine, path, soname string) {
	t.Helper()
	writeFile(t, path, string(elfLibrary(m, soname)), 0o644)
}

func writeFile(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testutil.Must(t, os.WriteFile(path, []byte(content), mode))
	testutil.Must(t, os.Chmod(path, mode))
}

// Offsets in the file: header, two program headers, strings, dynamic section, and three section
// headers, of which the first is the empty one.
const (
	stringsAt = 0x100
	dynamicAt = 0x180
	headersAt = 0x200
)

// elfLibrary returns a minimal ELF file with a library's name and machine.
func elfLibrary(m elf.Machine, soname string) []byte {
	var b bytes.Buffer
	strs := "\x00" + soname + "\x00"
	put := func(at int, data any) {
		b.Write(make([]byte, at-b.Len()))
		if err := binary.Write(&b, binary.LittleEndian, data); err != nil {
			panic(err)
		}
	}
	tag := elf.DT_SONAME
	if soname == "" {
		tag = elf.DT_DEBUG
	}
	if m == elf.EM_386 || m == elf.EM_ARM {
		put(0, elf.Header32{
			Ident: ident(elf.ELFCLASS32), Type: uint16(elf.ET_DYN), Machine: uint16(m), Version: 1, Phoff: 52, Shoff: headersAt,
			Ehsize: 52, Phentsize: 32, Phnum: 2, Shentsize: 40, Shnum: 3, Shstrndx: 1,
		})
		put(52, []elf.Prog32{
			{Type: uint32(elf.PT_LOAD), Filesz: headersAt, Memsz: headersAt, Flags: 4},
			{Type: uint32(elf.PT_DYNAMIC), Off: dynamicAt, Vaddr: dynamicAt, Filesz: 32, Memsz: 32, Flags: 4},
		})
		put(stringsAt, []byte(strs))
		put(dynamicAt, []int32{int32(tag), 1, int32(elf.DT_STRTAB), stringsAt, int32(elf.DT_STRSZ), int32(len(strs)), 0, 0})
		put(headersAt, []elf.Section32{
			{},
			{Type: uint32(elf.SHT_STRTAB), Addr: stringsAt, Off: stringsAt, Size: uint32(len(strs))},
			{Type: uint32(elf.SHT_DYNAMIC), Addr: dynamicAt, Off: dynamicAt, Size: 32, Link: 1, Entsize: 8},
		})
		return b.Bytes()
	}
	put(0, elf.Header64{
		Ident: ident(elf.ELFCLASS64), Type: uint16(elf.ET_DYN), Machine: uint16(m), Version: 1, Phoff: 64, Shoff: headersAt,
		Ehsize: 64, Phentsize: 56, Phnum: 2, Shentsize: 64, Shnum: 3, Shstrndx: 1,
	})
	put(64, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Filesz: headersAt, Memsz: headersAt, Flags: 4},
		{Type: uint32(elf.PT_DYNAMIC), Off: dynamicAt, Vaddr: dynamicAt, Filesz: 64, Memsz: 64, Flags: 4},
	})
	put(stringsAt, []byte(strs))
	put(dynamicAt, []int64{int64(tag), 1, int64(elf.DT_STRTAB), stringsAt, int64(elf.DT_STRSZ), int64(len(strs)), 0, 0})
	put(headersAt, []elf.Section64{
		{},
		{Type: uint32(elf.SHT_STRTAB), Addr: stringsAt, Off: stringsAt, Size: uint64(len(strs))},
		{Type: uint32(elf.SHT_DYNAMIC), Addr: dynamicAt, Off: dynamicAt, Size: 64, Link: 1, Entsize: 16},
	})
	return b.Bytes()
}

func ident(class elf.Class) (id [elf.EI_NIDENT]byte) {
	copy(id[:], elf.ELFMAG)
	id[elf.EI_CLASS], id[elf.EI_DATA], id[elf.EI_VERSION] = byte(class), byte(elf.ELFDATA2LSB), 1
	return id
}
