package process

import (
	"os"
	"path/filepath"
	"strings"
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

// TestLongPath: a mapping after one of a file with a very long path is found.
func TestLongPath(t *testing.T) {
	needRoot(t)
	dir, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 250)
	for range 300 {
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(dir)
		dir = next
	}
	fd, err := unix.Openat(dir, "file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(dir)
	const low = 0x10000000
	for i, f := range []struct {
		fd   int
		path string
	}{{fd: fd}, {path: "/dev/zero"}} {
		if f.path != "" {
			if f.fd, err = unix.Open(f.path, unix.O_RDONLY, 0); err != nil {
				t.Fatal(err)
			}
		}
		_, _, e := unix.Syscall6(unix.SYS_MMAP, low+uintptr(i)<<20, uintptr(os.Getpagesize()), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED, uintptr(f.fd), 0)
		if e != 0 {
			t.Fatal(e)
		}
		_ = unix.Close(f.fd)
	}
	device := unix.Mkdev(1, 5)
	if users := NewDeviceSearch("/proc", []uint64{device}).Search([]int{os.Getpid()}); len(users) != 1 {
		t.Errorf("users %v", users)
	}
	for i := range uintptr(2) {
		if _, _, e := unix.Syscall(unix.SYS_MUNMAP, low+i<<20, uintptr(os.Getpagesize()), 0); e != 0 {
			t.Error(e)
		}
	}
}

// TestLimit: a text that is longer than the limit is known to be incomplete.
func TestLimit(t *testing.T) {
	var m mappedDevices
	if _, size, all := m.listDevices("/proc", os.Getpid(), 100); all || size <= 100 {
		t.Errorf("of more than 100 bytes %d were read, all: %v", size, all)
	}
}
