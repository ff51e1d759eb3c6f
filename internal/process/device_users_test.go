package process

import (
	"os"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDeviceSearch: a process of a tenant that has more files open than may be looked at counts as if it had every device
// open.
func TestDeviceSearch(t *testing.T) {
	fd, err := unix.Open("/dev/full", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	const other = 4095 << 8
	self := os.Getpid()
	look := func(left int) []uint64 {
		s := NewDeviceSearch("/proc", []uint64{st.Rdev, other})
		who, err := s.tenantOf(self)
		if err != nil {
			t.Fatal(err)
		}
		s.left[who] = left
		open := s.Search([]int{self})[self]
		if s.Searched(self) != (len(open) == 1) {
			t.Errorf("searched: %v, open %v", s.Searched(self), open)
		}
		return open
	}
	if got := look(maxFiles); !slices.Equal(got, []uint64{st.Rdev}) {
		t.Errorf("open %v, want %v", got, st.Rdev)
	}
	path, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(path, &st); err != nil {
		t.Fatal(err)
	}
	if info := (OpenFile{dir: "/proc/self", descriptor: strconv.Itoa(path)}); !info.isPath() {
		t.Error("a descriptor made with O_PATH counts")
	}
	if info := (OpenFile{dir: "/proc/self", descriptor: strconv.Itoa(fd)}); info.isPath() {
		t.Error("a descriptor made without O_PATH doesn't count")
	}
	if err := unix.Close(path); err != nil {
		t.Error(err)
	}
	if got := look(2); len(got) != 2 {
		t.Errorf("of too many files %v", got)
	}
	s := NewDeviceSearch("/proc", []uint64{st.Rdev})
	who, err := s.tenantOf(self)
	if err != nil {
		t.Fatal(err)
	}
	s.left[tenant{who.where, 4711}] = 0 // another user's
	if s.Search([]int{self}); !s.Searched(self) {
		t.Error("one tenant's files count for another")
	}
}
