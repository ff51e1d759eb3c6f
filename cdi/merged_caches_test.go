package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/cdi/shared"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// unwritable is the preparation of a root that can't be written.
func unwritable(state string) *preparation {
	return &preparation{state: state, shared: shared.Dir{Source: state}, dir: testDir(), spec: &specs.Spec{Process: &specs.Process{}}, Prepared: Prepared{Target: Target}}
}

func bindOne(t *testing.T, state string, content []byte) *preparation {
	t.Helper()
	p := unwritable(state)
	must(t, p.bindCache([]byte("old"), content))
	return p
}

// ageFiles makes all files in the directory look unused for a long time.
func ageFiles(t *testing.T, dir string) {
	t.Helper()
	names, err := os.ReadDir(dir)
	must(t, err)
	long := time.Now().Add(-24 * time.Hour)
	for _, n := range names {
		must(t, os.Chtimes(filepath.Join(dir, n.Name()), long, long))
	}
}

func usage(t *testing.T, dir string) (count int, size int64) {
	t.Helper()
	names, err := os.ReadDir(dir)
	must(t, err)
	for _, n := range names {
		fi, err := n.Info()
		must(t, err)
		size += fi.Size()
	}
	return len(names), size
}

func TestBoundCachesAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name  string
		size  int
		times int
	}{{"many", 10, 300}, {"large", 3 << 20, 20}} {
		t.Run(tt.name, func(t *testing.T) {
			state := t.TempDir()
			dir := filepath.Join(state, ".bound")
			var last *preparation
			for i := range tt.times {
				last = bindOne(t, state, append(bytes.Repeat([]byte{'x'}, tt.size), fmt.Sprint(i)...))
				ageFiles(t, dir)
			}
			if count, size := usage(t, dir); count > 257 || size > 32<<20 {
				t.Errorf("%d files, %d bytes", count, size)
			}
			if len(last.Edits.Mounts) != 1 {
				t.Fatalf("mounts %v", last.Edits.Mounts)
			}
			if _, err := os.Stat(last.Edits.Mounts[0].Source); err != nil {
				t.Error(err)
			}
		})
	}
}

// A cache that a runtime may be about to bind isn't removed for another one, which then can't be
// stored.
func TestBoundCachesInUseStay(t *testing.T) {
	state := t.TempDir()
	large := func(i byte) []byte { return bytes.Repeat([]byte{i}, 4<<20) }
	kept := bindOne(t, state, large(0)).Edits.Mounts[0].Source
	for i := byte(1); i < 8; i++ {
		bindOne(t, state, large(i))
	}
	ageFiles(t, filepath.Join(state, ".bound"))
	bindOne(t, state, large(0)) // used again
	for i := byte(8); i < 15; i++ {
		bindOne(t, state, large(i))
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	p := bindOne(t, state, large(15))
	if p.Edits.Mounts != nil || p.Edits.Env["LD_LIBRARY_PATH"] != "/usr/local/nvidia/lib64" || len(p.Notes) != 1 {
		t.Errorf("got %+v", p.Prepared)
	}
}

// A container that may mount can write through its bind: the content is checked before another one
// gets it.
func TestBoundCacheThatWasChanged(t *testing.T) {
	state := t.TempDir()
	file := bindOne(t, state, []byte("right")).Edits.Mounts[0].Source
	write(t, file, "wrong")
	if again := bindOne(t, state, []byte("right")).Edits.Mounts[0].Source; read(t, again) != "right" {
		t.Errorf("%s says %q", again, read(t, again))
	}
}

func TestLargeCachesAreNotStored(t *testing.T) {
	p := unwritable(t.TempDir())
	memory := filepath.Join(p.state, "ldmemo")
	p.mergedCache(bytes.Repeat([]byte("\n"), 10)) // an invalid cache is noted, and the result isn't stored
	p.mergedCache(image().Bytes())
	p.mergedCache(manyLibraries("large", 30000).Bytes())
	if count, size := usage(t, memory); count != 1 || size > 1<<20 {
		t.Errorf("%d caches with %d bytes are remembered", count, size)
	}
	for i := range 32 {
		file := filepath.Join(memory, fmt.Sprint(i))
		write(t, file, "")
		must(t, os.Truncate(file, 1<<20))
	}
	p.mergedCache(manyLibraries("app", 1).Bytes())
	if count, size := usage(t, memory); count != 1 || size > 1<<20 {
		t.Errorf("of 32 MiB and one more cache, %d with %d bytes are remembered", count, size)
	}
}

// TestMergedCachesAreStored: the merged cache of an image with thousands of libraries is stored,
// and for a root that was prepared before, that it is unchanged.
func TestMergedCachesAreStored(t *testing.T) {
	p := unwritable(t.TempDir())
	old := manyLibraries("app", 12000).Bytes()
	first := p.mergedCache(old)
	if !bytes.Equal(p.mergedCache(first), first) {
		t.Error("merging twice isn't the same as once")
	}
	if count, size := usage(t, filepath.Join(p.state, "ldmemo")); count != 2 || size > int64(len(first))+100 {
		t.Fatalf("%d caches with %d bytes are remembered", count, size)
	}
	for _, again := range [][]byte{old, first} {
		if got := p.mergedCache(again); !bytes.Equal(got, first) {
			t.Errorf("remembered %d bytes, made %d", len(got), len(first))
		}
	}
}

// manyLibraries returns a cache with this many libraries beside the image's own.
func manyLibraries(name string, count int) ldcache.Cache {
	cache := image()
	for i := range count {
		e := cache.Entries[0]
		e.Name = fmt.Sprintf("lib%s-%d.so.1", name, i)
		cache.Entries = append(cache.Entries, e)
	}
	return cache
}

// On a disk that has become read-only, an existing file is still used.
func TestBoundFileOnReadOnlyDisk(t *testing.T) {
	testutil.NeedRoot(t)
	disk := t.TempDir()
	testutil.Must(t, unix.Mount("none", disk, "tmpfs", 0, ""))
	t.Cleanup(func() { testutil.Must(t, unix.Unmount(disk, 0)) })
	b := boundFiles{filepath.Join(disk, ".bound")}
	file, err := b.addFile([]byte("there"))
	testutil.Must(t, err)
	testutil.Must(t, unix.Mount("none", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if again, err := b.addFile([]byte("there")); err != nil || again != file {
		t.Errorf("got %s, %v, want %s", again, err, file)
	}
	if _, err := b.addFile([]byte("another")); !errors.Is(err, unix.EROFS) {
		t.Errorf("another: %v", err)
	}
}
