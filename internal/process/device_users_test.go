package process

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFindDeviceUsers: a process with more open files than usual is searched as others are, and one with more than
// may be looked at counts as if it had every device open.
func TestFindDeviceUsers(t *testing.T) {
	fd, err := unix.Open("/dev/full", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fds := []int{fd}
	defer func() {
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	const other = 4095 << 8
	self := os.Getpid()
	look := func(left int) []uint64 {
		s := deviceSearch{proc: "/proc", devices: []uint64{st.Rdev, other}, left: left}
		return s.searchAll([]int{self})[self]
	}
	if got := look(maxFiles); !slices.Equal(got, []uint64{st.Rdev}) {
		t.Errorf("open %v, want %v", got, st.Rdev)
	}
	if got := look(2); !slices.Equal(got, []uint64{st.Rdev, other}) {
		t.Errorf("of too many files %v", got)
	}
	for range usualFiles {
		fd, err := unix.Dup(fd)
		if err != nil {
			t.Skip("a process may not have so many descriptors: ", err)
		}
		fds = append(fds, fd)
	}
	if got := look(maxFiles); !slices.Equal(got, []uint64{st.Rdev}) {
		t.Errorf("open %v in a process with many files, want %v", got, st.Rdev)
	}
}
