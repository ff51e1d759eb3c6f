package ldcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const driverDir = "/usr/local/nvidia/lib64/"

func ours(name string) Entry { return Entry{Name: name, Path: driverDir + name, Flags: X8664} }

func theirs(name string) Entry { return Entry{Name: name, Path: "/lib/" + name, Flags: X8664} }

func TestMerge(t *testing.T) {
	i386 := Entry{Name: "libcuda.so.1", Path: "/usr/lib32/libcuda.so.1", Flags: I386}
	hwcap := theirs("libcuda.so.1")
	hwcap.HWCap = 1 << 62
	tests := []struct {
		name  string
		cache []Entry
		ours  []Entry
		want  []Entry
	}{
		{name: "nothing"},
		{name: "into none", ours: []Entry{ours("liba.so.1"), ours("libb.so.1")}, want: []Entry{ours("libb.so.1"), ours("liba.so.1")}},
		{name: "nothing of ours", cache: []Entry{theirs("libc.so.6")}, want: []Entry{theirs("libc.so.6")}},
		{
			name:  "between",
			cache: []Entry{theirs("libz.so.1"), theirs("libc.so.6")}, ours: []Entry{ours("libcuda.so.1")},
			want: []Entry{theirs("libz.so.1"), ours("libcuda.so.1"), theirs("libc.so.6")},
		},
		{
			name:  "numbers count as numbers",
			cache: []Entry{theirs("libx.so.10"), theirs("libx.so.2")}, ours: []Entry{ours("libx.so.9")},
			want: []Entry{theirs("libx.so.10"), ours("libx.so.9"), theirs("libx.so.2")},
		},
		{
			name:  "before the image's, also that for better hardware",
			cache: []Entry{hwcap, theirs("libcuda.so.1"), i386}, ours: []Entry{ours("libcuda.so.1")},
			want: []Entry{ours("libcuda.so.1"), hwcap, theirs("libcuda.so.1"), i386},
		},
		{
			name:  "the loader takes .01 for .1",
			cache: []Entry{theirs("libcuda.so.01")}, ours: []Entry{ours("libcuda.so.1")},
			want: []Entry{ours("libcuda.so.1"), theirs("libcuda.so.01")},
		},
		{
			name:  "again",
			cache: []Entry{ours("libcuda.so.1"), theirs("libcuda.so.1")}, ours: []Entry{ours("libcuda.so.1")},
			want: []Entry{ours("libcuda.so.1"), theirs("libcuda.so.1")},
		},
		{
			name:  "moved behind by a later ldconfig",
			cache: []Entry{theirs("libcuda.so.1"), ours("libcuda.so.1")}, ours: []Entry{ours("libcuda.so.1")},
			want: []Entry{ours("libcuda.so.1"), theirs("libcuda.so.1")},
		},
		{
			name: "two of the same soname keep their order",
			ours: []Entry{{"liba.so", "/x/liba.so", X8664, 0, 0}, {"liba.so", "/w/liba.so", X8664, 0, 0}, {"liba.so", "/x/liba.so", X8664, 0, 0}},
			want: []Entry{{"liba.so", "/x/liba.so", X8664, 0, 0}, {"liba.so", "/w/liba.so", X8664, 0, 0}},
		},
		{
			name:  "a cache out of order is put in order",
			cache: []Entry{theirs("liba.so.1"), theirs("libz.so.1")}, ours: []Entry{ours("libcuda.so.1")},
			want: []Entry{theirs("libz.so.1"), ours("libcuda.so.1"), theirs("liba.so.1")},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.cache)
			got := Cache{Entries: tt.cache}.Merge(tt.ours)
			if diff := cmp.Diff(tt.want, got.Entries, equateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !slices.Equal(before, tt.cache) {
				t.Error("the cache itself was changed")
			}
		})
	}
}

func equateEmpty() cmp.Option {
	return cmp.FilterValues(func(a, b []Entry) bool { return len(a)+len(b) == 0 }, cmp.Ignore())
}

func TestWithout(t *testing.T) {
	c := Cache{Entries: []Entry{
		theirs("libz.so.1"), ours("libcuda.so.1"),
		{"libx.so", driverDir + "vdpau/libx.so", X8664, 0, 0},
		{"liby.so", "/usr/local/nvidia/lib64x/liby.so", X8664, 0, 0},
	}}
	want := []Entry{c.Entries[0], c.Entries[3]}
	for _, dir := range []string{"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib64/"} {
		if got := c.Without(dir); !slices.Equal(got.Entries, want) || len(c.Entries) != 4 {
			t.Errorf("Without(%q) = %v", dir, got.Entries)
		}
	}
}

func TestCompareNames(t *testing.T) {
	// Descending, as in a cache.
	names := []string{
		"libz.so.1", "libx11.so", "libx9.so.1", "libx.so.10", "libx.so.9", "libx.so.1.2.10", "libx.so.1.2", "libx.so.1",
		"libx.so", "libx-2.so", "libx", "libX.so", "lib_.so", "lib10.so", "lib9.so", "lib.so", "lib+.so", "lib", "", "\xff",
	}
	// Digits stand above every other byte.
	slices.SortStableFunc(names, func(a, b string) int { return compareNames(b, a) })
	want := []string{
		"lib10.so", "lib9.so", "libz.so.1", "libx11.so", "libx9.so.1", "libx.so.10", "libx.so.9", "libx.so.1.2.10", "libx.so.1.2", "libx.so.1",
		"libx.so", "libx-2.so", "libx", "lib_.so", "libX.so", "lib.so", "lib+.so", "lib", "", "\xff",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`(lib|l)?[a-c019.\xff-]{0,6}`)
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		sign := func(n int) int { return max(-1, min(1, n)) }
		if sign(compareNames(a, b)) != -sign(compareNames(b, a)) {
			t.Fatal("not antisymmetric")
		}
		if compareNames(a, b) <= 0 && compareNames(b, c) <= 0 && compareNames(a, c) > 0 {
			t.Fatal("not transitive")
		}
	})
}

// genCache draws a cache as ldconfig could have written it, not always in order.
func genCache() *rapid.Generator[Cache] {
	names := rapid.StringMatching(`lib[a-d0-9]{1,3}\.so(\.[0-9]{1,2}){0,2}`)
	return rapid.Custom(func(t *rapid.T) Cache {
		c := Cache{Generator: rapid.SampledFrom([]string{"", "ldconfig (GNU libc) 2.36"}).Draw(t, "generator")}
		c.HWCaps = rapid.SampledFrom([][]string{nil, {"x86-64-v2", "x86-64-v3"}}).Draw(t, "hwcaps")
		for range rapid.IntRange(0, 20).Draw(t, "entries") {
			name := names.Draw(t, "name")
			c.Entries = append(c.Entries, Entry{
				Name: name, Path: rapid.SampledFrom([]string{"/lib/", "/usr/lib/x/", "/"}).Draw(t, "dir") + name,
				Flags:     rapid.SampledFrom([]Flags{I386, X8664, AArch64, 1}).Draw(t, "flags"),
				OSVersion: rapid.Uint32().Draw(t, "os"), HWCap: rapid.Uint64().Draw(t, "hwcap"),
			})
		}
		return c
	})
}

func TestBytesAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genCache().Draw(t, "cache")
		got, err := Parse(want.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, equateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatal("not deterministic")
		}
	})
}

func TestMergeTwiceIsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		image := genCache().Draw(t, "image")
		mine := genCache().Draw(t, "ours").Entries
		once := image.Merge(mine)
		read, err := Parse(once.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if twice := read.Merge(mine); !bytes.Equal(twice.Bytes(), once.Bytes()) {
			t.Fatalf("once %v\ntwice %v", once, twice)
		}
		for _, e := range append(slices.Clone(mine), image.Entries...) {
			if !slices.Contains(once.Entries, e) {
				t.Fatalf("%v is lost", e)
			}
		}
	})
}

// combined puts an old-format table with n entries before a cache, as ldconfig
// did up to 2.31; the extensions then count from the new beginning.
func combined(c Cache, n int) []byte {
	file := append([]byte(oldMagic), 0)
	file = binary.LittleEndian.AppendUint32(file, uint32(n))
	for range n {
		file = appendUint32(file, int(X8664), 0, 0)
	}
	for len(file)%alignment != 0 {
		file = append(file, 0)
	}
	start := len(file)
	file = append(file, c.Bytes()...)
	at := binary.LittleEndian.Uint32(file[start+32:])
	if at == 0 {
		return file
	}
	put := func(offset int) {
		binary.LittleEndian.PutUint32(file[offset:], binary.LittleEndian.Uint32(file[offset:])+uint32(start))
	}
	put(start + 32)
	dir := start + int(at)
	for i := range int(binary.LittleEndian.Uint32(file[dir+4:])) {
		put(dir + extensionHeader + i*section + 8)
	}
	return file
}

func TestParseCombined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genCache().Draw(t, "cache")
		got, err := Parse(combined(want, rapid.IntRange(0, 5).Draw(t, "old")))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, equateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := Cache{Entries: []Entry{theirs("libz.so.1")}, HWCaps: []string{"x86-64-v2"}, Generator: "ldconfig"}.Bytes()
	ext := int(binary.LittleEndian.Uint32(good[32:]))
	with := func(offset int, value uint32) []byte {
		data := slices.Clone(good)
		binary.LittleEndian.PutUint32(data[offset:], value)
		return data
	}
	tests := []struct {
		name string
		data []byte
		says string
	}{
		{"text", []byte("#!/bin/sh\n"), "no \"glibc"},
		{"too short", good[:header-1], "no \"glibc"},
		{"another version", bytes.Replace(good, []byte("1.1"), []byte("1.2"), 1), "no \"glibc"},
		{"too large", make([]byte, MaxSize+1), "more than"},
		{"old format alone", append([]byte(oldMagic), make([]byte, 100)...), "no \"glibc"},
		{"old format, entries beyond the end", append([]byte(oldMagic+"\x00\xff\xff\xff\xff"), make([]byte, 100)...), "don't fit"},
		{"big-endian", with(28, 3), "little-endian"},
		{"endianness invalid", with(28, 1), "little-endian"},
		{"entries beyond the end", with(20, 9), "too many"},
		{"entries beyond reason", with(20, 1<<32-1), "too many"},
		{"name outside", with(header+4, 1<<31), "outside"},
		{"path outside", with(header+8, uint32(len(good))), "outside"},
		{"name without end", with(header+4, uint32(len(good)-3)), "no end"},
		{"extensions outside", with(32, uint32(len(good)-4)), "outside"},
		{"extensions far outside", with(32, 1<<32-4), "outside"},
		{"extensions without magic", with(32, 4), "no extensions"},
		{"extensions too many", with(ext+4, 1<<32-1), "too many"},
		{"section outside", with(ext+extensionHeader+8, 1<<32-1), "outside"},
		{"section too large", with(ext+extensionHeader+12, 1<<32-1), "outside"},
		{"hwcaps not of four bytes", with(ext+extensionHeader+section+12, 3), "hardware"},
		{"hwcap outside", with(ext+extensionHeader+2*section, 1<<30), "outside"},
		{"generator with NUL", with(ext+extensionHeader+2*section+4, 0), "generator"},
	}
	if _, err := Parse(good); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.data)
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Parse = %v, %v, want %q", got, err, tt.says)
			}
		})
	}
	if c, err := Parse(nil); err != nil || len(c.Entries) != 0 {
		t.Errorf("empty file: %v, %v", c, err)
	}
}

// TestHostileCost: many entries that point into one long string don't multiply the memory.
func TestHostileCost(t *testing.T) {
	const n = maxEntries
	file := append([]byte(magic), make([]byte, header-len(magic)+n*entry)...)
	binary.LittleEndian.PutUint32(file[20:], n)
	text := len(file)
	for range 64 {
		file = append(file, bytes.Repeat([]byte("a"), maxPath)...)
		file = append(file, 0)
	}
	for i := range n {
		at := file[header+i*entry:]
		binary.LittleEndian.PutUint32(at[4:], uint32(text+i%64*(maxPath+1)+maxPath-i%maxName))
		binary.LittleEndian.PutUint32(at[8:], uint32(text+i%64*(maxPath+1)+i%maxPath))
	}
	c, err := Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if out := c.Merge([]Entry{ours("libcuda.so.1")}).Bytes(); len(out) > len(file)+1024 {
		t.Errorf("%d bytes became %d", len(file), len(out))
	}
}

func FuzzParse(f *testing.F) {
	c := Cache{
		Entries:   []Entry{theirs("libz.so.1"), theirs("libcuda.so.1"), theirs("libc.so.6")},
		HWCaps:    []string{"x86-64-v2"},
		Generator: "ldconfig",
	}
	f.Add(c.Bytes())
	f.Add(combined(c, 2))
	f.Add(Cache{}.Bytes())
	mine := []Entry{ours("libcuda.so.1"), ours("libnvidia-ml.so.1")}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		once := c.Merge(mine).Bytes()
		if len(once) > 2*len(data)+1024 {
			t.Fatalf("%d bytes became %d", len(data), len(once))
		}
		read, err := Parse(once)
		if err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
		if twice := read.Merge(mine).Bytes(); !bytes.Equal(once, twice) {
			t.Fatal("merging twice isn't merging once")
		}
		i := slices.Index(read.Entries, mine[0])
		if i < 0 || i > 0 && read.Entries[i-1].Flags == X8664 && compareNames(read.Entries[i-1].Name, mine[0].Name) == 0 {
			t.Fatalf("ours isn't first at %d", i)
		}
	})
}

func ExampleCache_Merge() {
	image := Cache{Entries: []Entry{theirs("libcuda.so.1"), theirs("libc.so.6")}}.Bytes()

	cache, err := Parse(image)
	if err != nil {
		fmt.Println(err)
		return
	}
	merged := cache.Merge([]Entry{{Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib64/libcuda.so.1", Flags: X8664}})
	for _, e := range merged.Entries {
		fmt.Println(e.Name, "=>", e.Path)
	}
	// Output:
	// libcuda.so.1 => /usr/local/nvidia/lib64/libcuda.so.1
	// libcuda.so.1 => /lib/libcuda.so.1
	// libc.so.6 => /lib/libc.so.6
}

func BenchmarkMergeBytes(b *testing.B) {
	var image Cache
	for i := range 500 {
		image.Entries = append(image.Entries, theirs(fmt.Sprintf("lib%d.so.%d", i%200, i)))
	}
	data := image.Merge(nil).Bytes()
	var mine []Entry
	for i := range 40 {
		mine = append(mine, ours(fmt.Sprintf("libnvidia-%d.so.1", i)))
	}
	for b.Loop() {
		c, err := Parse(data)
		if err != nil {
			b.Fatal(err)
		}
		c.Merge(mine).Bytes()
	}
}
