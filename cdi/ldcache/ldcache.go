// Package ldcache reads, merges and writes glibc's loader cache (/etc/ld.so.cache) as data, so that
// a container finds the driver's libraries and no program has to be run against its root.
//
// [Parse] takes the format that glibc has written since 2.2, alone or behind the older one
// ("ld.so-1.7.0"), little-endian, with or without the extensions of glibc 2.33. [Cache.Bytes]
// writes only the new format, which every glibc since 2.2 reads: a cache that ldconfig 2.33 or
// newer wrote stays the same, byte for byte. The format is described in glibc's own dl-cache.h; the
// order of the entries is that of its ldconfig, because the loader does a binary search.
//
// All functions are pure. A cache comes from an image and may be hostile: sizes, counts and offsets
// are checked, time and memory are bounded by [MaxSize]. The caller finds the file and replaces it
// safely.
//
// The cache of musl (there is none) and big-endian caches aren't supported.
package ldcache

import (
	"cmp"
	"errors"
	"slices"
	"strings"
)

// MaxSize is the most bytes that Parse takes; a large image has about 100 KiB.
const MaxSize = 4 << 20

// Limits of one cache, far above what images have.
const (
	maxEntries   = 1 << 15
	maxHWCaps    = 1 << 10
	maxName      = 255  // bytes of a soname: it is a file's name
	maxPath      = 1024 // bytes of a path
	maxGenerator = 1024 // bytes
)

// ErrFormat: the data isn't a loader cache that can be read safely.
var ErrFormat = errors.New("not a loader cache")

// Cache is the content of a loader cache. The zero Cache is one without entries.
type Cache struct {
	// Entries in the order of the file.
	Entries []Entry
	// HWCaps are the names of the glibc-hwcaps directories ("x86-64-v3") that the
	// lower half of an entry's HWCap can be an index of.
	HWCaps []string
	// Generator names the program that wrote the cache; "" if the cache doesn't say.
	Generator string
}

// Entry leads from a library's soname to its file.
type Entry struct {
	Name  string // "libcuda.so.1"
	Path  string // absolute, in the container: "/usr/local/nvidia/lib64/libcuda.so.1"
	Flags Flags
	// OSVersion and HWCap restrict where the entry counts; both are 0 for ours.
	OSVersion uint32
	HWCap     uint64
}

// Merge returns the cache with our entries added, in the loader's order. For a
// soname that was there already ours comes first, and wins; the image's stays
// behind it. Merging the same entries again changes nothing. Names and paths
// must not contain NUL. c isn't changed.
func (c Cache) Merge(ours []Entry) Cache {
	merged := make([]Entry, 0, len(ours)+len(c.Entries))
	mine := make(map[Entry]bool, len(ours))
	for _, e := range ours {
		if !mine[e] {
			mine[e] = true
			merged = append(merged, e)
		}
	}
	for _, e := range c.Entries {
		if !mine[e] {
			merged = append(merged, e)
		}
	}
	slices.SortStableFunc(merged, compareEntries)
	c.Entries = merged
	return c
}

// Without returns the cache without the entries whose file lies in dir or below:
// what an earlier driver had there. c isn't changed.
func (c Cache) Without(dir string) Cache {
	dir = strings.TrimSuffix(dir, "/") + "/"
	c.Entries = slices.DeleteFunc(slices.Clone(c.Entries), func(e Entry) bool {
		return strings.HasPrefix(e.Path, dir)
	})
	return c
}

// compareEntries is ldconfig's order where it matters for entries of ours:
// descending names, then descending flags. Among equals the order is kept, so
// that the entries for special hardware stay before the plain ones.
func compareEntries(a, b Entry) int {
	if res := compareNames(b.Name, a.Name); res != 0 {
		return res
	}
	return cmp.Compare(int32(b.Flags), int32(a.Flags))
}

// compareNames is the loader's comparison: digits are compared as numbers, and
// stand above everything else; other bytes are signed, as on x86. It is 0 for
// names that the loader takes for the same ("libx.so.01", "libx.so.1").
func compareNames(a, b string) int {
	for a != "" {
		aDigit, bDigit := startsWithDigit(a), startsWithDigit(b)
		switch {
		case aDigit && bDigit:
			var m, n int32
			m, a = leadingNumber(a)
			n, b = leadingNumber(b)
			if m != n {
				return orderOf(m > n)
			}
		case aDigit != bDigit:
			return orderOf(aDigit)
		case firstByte(a) != firstByte(b):
			return orderOf(firstByte(a) > firstByte(b))
		default:
			a, b = a[1:], b[1:]
		}
	}
	return 0 - int(firstByte(b))
}

func orderOf(greater bool) int {
	if greater {
		return 1
	}
	return -1
}

// firstByte returns the first byte of s, 0 at its end as in C.
func firstByte(s string) int8 {
	if s == "" {
		return 0
	}
	return int8(s[0])
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// leadingNumber reads digits; what is too large wraps as in the loader.
func leadingNumber(s string) (n int32, rest string) {
	for ; startsWithDigit(s); s = s[1:] {
		n = n*10 + int32(s[0]-'0')
	}
	return n, s
}
