package process

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// MappedDevices finds the character devices that processes have mapped into their memory: a mapping keeps a device in
// use after its descriptor was closed. The zero value is ready for use; it remembers which files are devices. It
// must not be used by several goroutines at once.
type MappedDevices struct {
	// numbers are the device numbers (st_rdev) of the files that were seen, 0 for other files, by the fields of
	// /proc/PID/maps that identify a file.
	numbers map[string]uint64
}

// mapsTimeout bounds the read of one process's mappings: it waits for a lock that a process keeps while a driver that
// hangs maps memory for it.
const mapsTimeout = 200 * time.Millisecond

// List returns the numbers (st_rdev) of the devices that a process has mapped. proc is where procfs is mounted. The list is
// empty for a process whose mappings can't be read. The format is that of proc_pid_maps(5).
func (m *MappedDevices) List(proc string, pid int) (numbers []uint64) {
	if m.numbers == nil {
		m.numbers = map[string]uint64{}
	}
	dir := proc + "/" + strconv.Itoa(pid)
	for line := range strings.Lines(readMaps(dir + "/maps")) {
		fields := strings.Fields(line) // address, permissions, offset, device, inode, path
		if len(fields) < 6 || fields[4] == "0" {
			continue
		}
		file := fields[3] + " " + fields[4]
		number, seen := m.numbers[file]
		if !seen {
			var st unix.Statx_t
			// The names there have no leading zeros.
			from, to, _ := strings.Cut(fields[0], "-")
			path := dir + "/map_files/" + strings.TrimLeft(from, "0") + "-" + strings.TrimLeft(to, "0")
			err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
			if err != nil {
				continue // the mapping has ended
			}
			if st.Mode&unix.S_IFMT == unix.S_IFCHR {
				number = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
			}
			m.numbers[file] = number
		}
		if number != 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// readMaps returns a file of procfs, "" if it can't be read within mapsTimeout.
func readMaps(path string) string {
	done := make(chan string, 1)
	go func() {
		b, _ := os.ReadFile(path) // an error means that the process has ended
		done <- string(b)
	}()
	select {
	case text := <-done:
		return text
	case <-time.After(mapsTimeout):
		return ""
	}
}
