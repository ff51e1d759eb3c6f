package ldcache

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestSONAME(t *testing.T) {
	lib := library(t, "x")
	got, err := SONAME(bytes.NewReader(named(lib, "libcuda.so.1")))
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
	if got, err := SONAME(bytes.NewReader(read(t, filepath.Join(dir, "lib.so")))); err != nil || got.SONAME != "" {
		t.Errorf("without soname: %+v, %v", got, err)
	}

	huge := bytes.Clone(lib)
	f, err := elf.NewFile(bytes.NewReader(lib))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range f.Sections { // 40 and 64: where a 64-bit ELF file has its section headers, and their size
		if s.Type == elf.SHT_DYNAMIC {
			at := f.ByteOrder.Uint64(huge[40:]) + uint64(i)*64
			f.ByteOrder.PutUint64(huge[at+32:], 1<<40)
		}
	}
	tests := []struct {
		name string
		data []byte
	}{
		{"empty", nil},
		{"text", []byte("/* GNU ld script */ INPUT(libc.so.6)\n")},
		{"cut off", lib[:200]},
		{"object file", read(t, filepath.Join(dir, "lib.o"))},
		{"huge dynamic section", huge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := SONAME(bytes.NewReader(tt.data)); !errors.Is(err, ErrNotLibrary) {
				t.Errorf("SONAME = %+v, %v", got, err)
			}
		})
	}
}

// TestSONAMEofThisMachine: the cache's flags are those of the libraries it leads to.
func TestSONAMEofThisMachine(t *testing.T) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		need(t, "/etc/ld.so.cache")
	}
	seen := 0
	for _, e := range parse(t, data).Entries {
		if f, err := os.Open(e.Path); err == nil {
			lib, err := SONAME(f)
			flags, known := lib.Flags()
			if err := errors.Join(err, f.Close()); err != nil {
				continue // a linker script, for one
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

func FuzzSONAME(f *testing.F) {
	if lib, err := os.ReadFile("/lib64/ld-linux-x86-64.so.2"); err == nil {
		f.Add(lib)
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if lib, err := SONAME(bytes.NewReader(data)); err == nil && len(lib.SONAME) > maxName {
			t.Fatalf("soname of %d bytes", len(lib.SONAME))
		} else if err != nil && !errors.Is(err, ErrNotLibrary) {
			t.Fatal(err)
		}
	})
}
