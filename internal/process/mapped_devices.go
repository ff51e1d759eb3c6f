package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
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
// for it. mapsTimeout bounds one such wait, and totalMapsTimeout all together but for a moment each. maxMaps bounds the
// text, in bytes: it has about 100 for each mapping.
const (
	mapsTimeout      = 200 * time.Millisecond
	totalMapsTimeout = time.Second
	maxMaps          = 4 << 20
)

// mapsTries is how often mappings are read of a process that changes them meanwhile.
const mapsTries = 3

// listDevices returns the numbers (st_rdev) of the devices that a process has mapped, and how many mappings it has. proc is where
// procfs is mounted. all is false if the process has too many mappings, or changes them all the time. The list is empty for
// a process whose mappings can't be read. The format is that of proc_pid_maps(5).
func (m *mappedDevices) listDevices(proc string, pid int) (numbers []uint64, count int, all bool) {
	if m.numbers == nil {
		m.numbers = map[string]uint64{}
	}
	for range mapsTries {
		dir, text := m.findMaps(proc, pid)
		if len(text) > maxMaps {
			return nil, count, false
		}
		var read int
		numbers, read, all = m.parseMaps(dir, text)
		if count += read; all {
			break
		}
	}
	return numbers, count, all
}

// findMaps returns the mappings of a process, and the directory of procfs that they were read from.
func (m *mappedDevices) findMaps(proc string, pid int) (dir string, text []byte) {
	dir = proc + "/" + strconv.Itoa(pid)
	if text = m.readMaps(dir + "/maps"); len(text) > 0 {
		return dir, text
	}
	threads, _ := os.ReadDir(dir + "/task") // its first thread may have ended before the others
	for i := 0; len(text) == 0 && i < len(threads); i++ {
		dir = proc + "/" + threads[i].Name()
		text = m.readMaps(dir + "/maps")
	}
	return dir, text
}

// parseMaps returns the devices in a text of proc_pid_maps(5). all is false if a mapping has ended or moved meanwhile.
func (m *mappedDevices) parseMaps(dir string, text []byte) (numbers []uint64, count int, all bool) {
	all = true
	for line := range bytes.Lines(text) {
		count++
		fields := strings.Fields(string(line)) // address, permissions, offset, device, inode, path
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
				all = all && !errors.Is(err, unix.ENOENT)
				continue
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
	return numbers, count, all
}

// stuckReads are the paths whose reads wait: each keeps a thread of this process.
var stuckReads sync.Map //nolint:gochecknoglobals // the threads are this process's, whichever search has started them

// readMaps returns the mappings of a process, none if they can't be read in time, and more than maxMaps if there are too many.
func (m *mappedDevices) readMaps(path string) []byte {
	if _, waits := stuckReads.LoadOrStore(path, true); waits {
		return nil
	}
	done := make(chan []byte, 1)
	go func() {
		defer stuckReads.Delete(path)
		f, err := os.Open(path)
		if err != nil {
			done <- nil
			return
		}
		defer f.Close()
		text, _ := io.ReadAll(io.LimitReader(f, maxMaps+1)) // an error means that the process has ended
		done <- text
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
		return nil
	}
}
