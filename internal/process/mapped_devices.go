package process

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mappedDevices finds the character devices that processes have mapped into their memory: a mapping keeps a device in
// use after its descriptor was closed. The zero value is ready for use; it remembers which files are devices. It
// must not be used by several goroutines at once.
type mappedDevices struct {
	// numbers are the device numbers (st_rdev) of the files that were seen, 0 for other files, by the fields of
	// /proc/PID/maps that identify a file.
	numbers map[string]uint64
	waited  time.Duration // for mappings that couldn't be read
}

// Reading the mappings of a process waits for a lock that the process keeps, for instance while a driver that hangs maps memory
// for it. mapsTimeout bounds one such wait, and totalMapsTimeout all together but for a moment each.
const (
	mapsTimeout      = 200 * time.Millisecond
	totalMapsTimeout = time.Second
)

// list returns the numbers (st_rdev) of the devices that a process has mapped. proc is where procfs is mounted. The list is
// empty for a process whose mappings can't be read. The format is that of proc_pid_maps(5).
func (m *mappedDevices) list(proc string, pid int) (numbers []uint64) {
	if m.numbers == nil {
		m.numbers = map[string]uint64{}
	}
	dir := proc + "/" + strconv.Itoa(pid)
	for line := range strings.Lines(m.readMaps(dir + "/maps")) {
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

// readMaps returns the mappings of a process, "" if they can't be read in time.
func (m *mappedDevices) readMaps(path string) string {
	done := make(chan string, 1)
	go func() {
		b, _ := os.ReadFile(path) // an error means that the process has ended
		done <- string(b)
	}()
	limit := mapsTimeout
	if m.waited >= totalMapsTimeout {
		limit = 10 * time.Millisecond
	}
	select {
	case text := <-done:
		return text
	case <-time.After(limit):
		m.waited += limit
		return ""
	}
}
