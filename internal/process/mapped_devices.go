package process

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// mappedDevices finds the character devices that processes have mapped into their memory: a mapping keeps a device in
// use after its descriptor was closed. The zero value is ready for use; it remembers which files are devices. It
// must not be used by several goroutines at once.
type mappedDevices struct {
	// numbers are the device numbers (st_rdev) of the files that were seen, 0 for other files, by the fields of
	// /proc/PID/maps that identify a file.
	numbers map[string]uint64
}

// mapsTries is how often mappings are read of a process that changes them meanwhile.
const mapsTries = 3

// mapping is a part of a process's memory that shows a file.
type mapping struct {
	file     string // the fields of /proc/PID/maps that identify it
	from, to uint64
}

// listDevices returns the numbers (st_rdev) of the devices that a process has mapped, and the size of the text that was read to find
// them, in bytes. proc is where procfs is mounted. all is false if the text is longer than limit, or if the process changes its
// mappings all the time. The list is empty for a process whose mappings can't be read. The format is that of proc_pid_maps(5).
func (m *mappedDevices) listDevices(proc string, pid, limit int) (numbers []uint64, size int, all bool) {
	if m.numbers == nil {
		m.numbers = map[string]uint64{}
	}
	for range mapsTries {
		thread, text := findMaps(proc, pid, limit-size)
		if size += text.size; text.partial || size > limit {
			return nil, size, false
		}
		if numbers, all = m.lookUp(proc, thread, text.files); all {
			break
		}
	}
	return numbers, size, all
}

// findMaps returns the mappings of a process, and the thread by which they were read.
func findMaps(proc string, pid, limit int) (thread int, text mapsText) {
	thread, text = pid, readMaps(proc, pid, limit)
	if text.size > 0 || text.stuck || text.partial {
		return thread, text
	}
	threads, _ := os.ReadDir(proc + "/" + strconv.Itoa(pid) + "/task") // its first thread may have ended before the others
	for i := 0; text.size == 0 && !text.stuck && !text.partial && i < len(threads); i++ {
		id, err := strconv.Atoi(threads[i].Name())
		if err != nil {
			continue
		}
		thread, text = id, readMaps(proc, id, limit)
	}
	return thread, text
}

// lookUp returns the devices among files that a thread has mapped. all is false if a mapping has ended or moved meanwhile, or if the
// process keeps its mmap_lock, for which the files in map_files wait. (Since Linux 6.17, maps doesn't wait for that lock.)
func (m *mappedDevices) lookUp(proc string, thread int, files []mapping) (numbers []uint64, all bool) {
	var unseen []mapping
	for _, f := range files {
		if number, seen := m.numbers[f.file]; !seen {
			unseen = append(unseen, f)
		} else if number != 0 {
			numbers = append(numbers, number)
		}
	}
	if len(unseen) == 0 {
		return numbers, true
	}
	dir := proc + "/" + strconv.Itoa(thread)
	found, o := readInBackground(question{proc, thread, mapFilesLock}, func(r *read) lookup { return r.lookUp(dir, unseen) })
	if o != answered {
		return numbers, false
	}
	maps.Copy(m.numbers, found.numbers)
	for _, number := range found.numbers {
		if number != 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers, !found.moved
}

// lookup is what is found about mapped files.
type lookup struct {
	numbers map[string]uint64 // as in mappedDevices
	moved   bool              // a mapping has ended or moved
}

func (r *read) lookUp(dir string, files []mapping) (found lookup) {
	found.numbers = map[string]uint64{}
	for _, f := range files {
		var st unix.Statx_t
		path := dir + "/map_files/" + strconv.FormatUint(f.from, 16) + "-" + strconv.FormatUint(f.to, 16)
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
		r.progress.Add(1)
		switch {
		case r.abandoned.Load():
			return found
		case err != nil:
			found.moved = found.moved || errors.Is(err, unix.ENOENT)
		case st.Mode&unix.S_IFMT == unix.S_IFCHR:
			found.numbers[f.file] = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
		default:
			found.numbers[f.file] = 0
		}
	}
	return found
}

// mapsText is what was read of a text of proc_pid_maps(5).
type mapsText struct {
	files   []mapping // one of each file
	size    int       // in bytes
	partial bool      // there is more
	stuck   bool      // nothing came in time
}

// readMaps reads the mappings of a process or thread. It stops after more than limit bytes.
func readMaps(proc string, id, limit int) mapsText {
	path := proc + "/" + strconv.Itoa(id) + "/maps"
	text, o := readInBackground(question{proc, id, mapsLock}, func(r *read) mapsText { return r.readText(path, limit) })
	switch o {
	case silent:
		return mapsText{stuck: true}
	case slow: // no time either for others of the same user
		return mapsText{size: limit + 1, partial: true}
	}
	return text
}

// readText reads a text of the format of proc_pid_maps(5), and stops after more than limit bytes.
func (r *read) readText(path string, limit int) (text mapsText) {
	f, err := os.Open(path)
	if err != nil { // without an end or a lack of rights there may be something to read
		text.partial = !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrPermission)
		return text
	}
	defer f.Close()
	seen := map[string]bool{}
	lines := bufio.NewReaderSize(f, 1<<16)
	for !r.abandoned.Load() {
		line, err := lines.ReadSlice('\n')
		if file, addresses, ok := splitMapping(line); ok && !seen[string(file)] {
			from, to, _ := bytes.Cut(addresses, []byte("-"))
			one := mapping{file: string(file)}
			one.from, _ = strconv.ParseUint(string(from), 16, 64)
			one.to, _ = strconv.ParseUint(string(to), 16, 64)
			seen[one.file] = true
			text.files = append(text.files, one)
		}
		text.size += len(line)
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a long path: the kernel has no limit for one
			r.progress.Store(int64(text.size))
			line, err = lines.ReadSlice('\n')
			text.size += len(line)
		}
		r.progress.Store(int64(text.size))
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, unix.ESRCH): // that is all, or the process has ended
			return text
		case err != nil || text.size > limit:
			text.partial = true
			return text
		}
	}
	text.partial = true
	return text
}

// splitMapping splits a line: address, permissions, offset, device, inode, path. ok is false if it shows no file.
func splitMapping(line []byte) (file, addresses []byte, ok bool) {
	addresses, rest, _ := bytes.Cut(line, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	device, inode, ok := bytes.Cut(rest, []byte(" "))
	if !ok || len(inode) == 0 || inode[0] == '0' {
		return nil, nil, false
	}
	number, _, _ := bytes.Cut(inode, []byte(" "))
	return rest[:len(device)+1+len(number)], addresses, true
}
