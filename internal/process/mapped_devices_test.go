package process

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestManyMappings(t *testing.T) {
	addMappings(t, 60_000)
	s := NewDeviceSearch("/proc", []uint64{1 << 40})
	if users := s.Search([]int{os.Getpid()}); len(users) > 0 || !s.Searched(os.Getpid()) {
		t.Errorf("a process with 60,000 mappings isn't searched: %v", users)
	}
}

func BenchmarkManyMappings(b *testing.B) {
	addMappings(b, 60_000)
	for range b.N {
		NewDeviceSearch("/proc", []uint64{1 << 40}).Search([]int{os.Getpid()})
	}
}

// addMappings maps pages of a file, each as a mapping of its own.
func addMappings(tb testing.TB, pages int) {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "mapped"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	size := os.Getpagesize()
	area, err := unix.Mmap(int(f.Fd()), 0, pages*size, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(area) })
	for i := 0; i < pages; i += 2 {
		if err := unix.Mprotect(area[i*size:(i+1)*size], unix.PROT_NONE); err != nil {
			tb.Fatal(err)
		}
	}
}
