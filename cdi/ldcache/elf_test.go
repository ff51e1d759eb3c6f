package ldcache

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestReadLibrary(t *testing.T) {
	lib := library(t, "x")
	got, err := ReadLibrary(bytes.NewReader(withSoname(lib, "libcuda.so.1")))
	if err != nil {
		t.Fatal(err)
	}
	flags, ok := got.Flags()
	if got.SONAME != "libcuda.so.1" || got.Class != elf.ELFCLASS64 || !ok {
		t.Errorf("%+v, flags %#x %v", got, flags, ok)
	}

	dir := t.TempDir()
	write(t, filepath.Join(dir, "lib.c"), []byte("int x;"))
	run(t, program(t, "gcc"), "-shared", "-fPIC", "-nostdlib", "-o", filepath.Join(dir, "lib.so"), filepath.Join(dir, "lib.c"))
	run(t, program(t, "gcc"), "-c", "-o", filepath.Join(dir, "lib.o"), filepath.Join(dir, "lib.c"))
	if got, err := ReadLibrary(bytes.NewReader(read(t, filepath.Join(dir, "lib.so")))); err != nil || got.SONAME != "" {
		t.Errorf("without soname: %+v, %v", got, err)
	}

	// changed returns the file with another value in a field of the first program header of this
	// type. The headers of a 64-bit file have 56 bytes, and their offset is at byte 32 of the file.
	changed := func(kind elf.ProgType, field int, value uint64) []byte {
		data := bytes.Clone(lib)
		f, err := elf.NewFile(bytes.NewReader(lib))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range f.Progs {
			if p.Type == kind {
				f.ByteOrder.PutUint64(data[int(f.ByteOrder.Uint64(data[32:]))+i*56+field:], value)
				return data
			}
		}
		t.Fatalf("no %v", kind)
		return nil
	}
	tests := []struct {
		name string
		data []byte
	}{
		{"empty", nil},
		{"text", []byte("/* GNU ld script */ INPUT(libc.so.6)\n")},
		{"cut off", lib[:200]},
		{"object file", read(t, filepath.Join(dir, "lib.o"))},
		{"huge dynamic section", changed(elf.PT_DYNAMIC, 32, 1<<40)},
		{"dynamic section beyond the end", changed(elf.PT_DYNAMIC, 8, 1<<30)},
		{"dynamic section at a negative offset", changed(elf.PT_DYNAMIC, 8, 1<<63)},
		{"name in no segment", changed(elf.PT_LOAD, 16, 1<<40)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ReadLibrary(bytes.NewReader(tt.data)); !errors.Is(err, ErrNotLibrary) {
				t.Errorf("SONAME = %+v, %v", got, err)
			}
		})
	}
}

// TestReadLibrariesOfThisMachine: the flags in the machine's cache are those of the libraries that
// it names.
func TestReadLibrariesOfThisMachine(t *testing.T) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		testutil.SkipOrFail(t, "needs /etc/ld.so.cache")
	}
	seen := 0
	for _, e := range parse(t, data).Entries {
		if f, err := os.Open(e.Path); err == nil {
			lib, err := ReadLibrary(f)
			flags, known := lib.Flags()
			if err := errors.Join(err, f.Close()); err != nil {
				continue // for instance a linker script
			}
			if seen++; known && flags != e.Flags {
				t.Errorf("%s: flags %#x, cache has %#x", e.Path, flags, e.Flags)
			}
		}
	}
	if seen == 0 {
		t.Error("no library was read: the test shows nothing")
	}
}

func TestFlags(t *testing.T) {
	tests := []struct {
		class   elf.Class
		machine elf.Machine
		want    Flags
		ok      bool
	}{
		{elf.ELFCLASS64, elf.EM_X86_64, 0x303, true},
		{elf.ELFCLASS32, elf.EM_386, 0x3, true},
		{elf.ELFCLASS64, elf.EM_AARCH64, 0xa03, true},
		{elf.ELFCLASS64, elf.EM_PPC64, 0x503, true},
		{elf.ELFCLASS32, elf.EM_X86_64, 0, false}, // x32
		{elf.ELFCLASS64, elf.EM_RISCV, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.machine.String(), func(t *testing.T) {
			if got, ok := (Library{Class: tt.class, Machine: tt.machine}).Flags(); got != tt.want || ok != tt.ok {
				t.Errorf("%#x, %v", got, ok)
			}
		})
	}
}

func FuzzReadLibrary(f *testing.F) {
	if lib, err := os.ReadFile("/lib64/ld-linux-x86-64.so.2"); err == nil {
		f.Add(lib)
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &counted{ReaderAt: bytes.NewReader(data)}
		if lib, err := ReadLibrary(r); err == nil && len(lib.SONAME) > maxName {
			t.Fatalf("soname of %d bytes", len(lib.SONAME))
		} else if err != nil && !errors.Is(err, ErrNotLibrary) {
			t.Fatal(err)
		}
		if r.bytes > 80<<10 {
			t.Fatalf("%d bytes were asked for", r.bytes)
		}
	})
}

// counted counts the bytes that are asked for.
type counted struct {
	io.ReaderAt
	bytes int
}

func (c *counted) ReadAt(data []byte, off int64) (int, error) {
	c.bytes += len(data)
	return c.ReaderAt.ReadAt(data, off)
}
