package process

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
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
// for it. mapsTimeout bounds the time without any text, and totalMapsTimeout all such times together but for a moment each. A text that
// comes slowly, as on a busy machine, is read for slowMapsTimeout.
const (
	mapsTimeout      = 200 * time.Millisecond
	totalMapsTimeout = time.Second
	slowMapsTimeout  = 2 * time.Second
)

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
		dir, text := m.findMaps(proc, pid, limit-size)
		if size += text.size; text.partial || size > limit {
			return nil, size, false
		}
		if numbers, all = m.lookUp(dir, text.files); all {
			break
		}
	}
	return numbers, size, all
}

// findMaps returns the mappings of a process, and the directory of procfs that they were read from.
func (m *mappedDevices) findMaps(proc string, pid, limit int) (dir string, text mapsText) {
	dir = proc + "/" + strconv.Itoa(pid)
	text = m.readMaps(dir+"/maps", limit)
	if text.size > 0 || text.stuck || text.partial {
		return dir, text
	}
	threads, _ := os.ReadDir(dir + "/task") // its first thread may have ended before the others
	for i := 0; text.size == 0 && !text.stuck && !text.partial && i < len(threads); i++ {
		dir = proc + "/" + threads[i].Name()
		text = m.readMaps(dir+"/maps", limit)
	}
	return dir, text
}

// lookUp returns the devices among mapped files. all is false if a mapping has ended or moved meanwhile.
func (m *mappedDevices) lookUp(dir string, files []mapping) (numbers []uint64, all bool) {
	all = true
	for _, f := range files {
		number, seen := m.numbers[f.file]
		if !seen {
			var st unix.Statx_t
			path := dir + "/map_files/" + strconv.FormatUint(f.from, 16) + "-" + strconv.FormatUint(f.to, 16)
			err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
			if err != nil {
				all = all && !errors.Is(err, unix.ENOENT)
				continue
			}
			if st.Mode&unix.S_IFMT == unix.S_IFCHR {
				number = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
			}
			m.numbers[f.file] = number
		}
		if number != 0 {
			numbers = append(numbers, number)
		}
	}
	return numbers, all
}

// mapsText is what was read of a text of proc_pid_maps(5).
type mapsText struct {
	files   []mapping // one of each file
	size    int       // in bytes
	partial bool      // there is more
	stuck   bool      // nothing came in time
}

// stuckReads are the paths whose reads wait, with the mapsText that they have given: each keeps a thread of this process.
var stuckReads sync.Map //nolint:gochecknoglobals // the threads are this process's, whichever search has started them

// mapsRead is one read of mappings, in the background.
type mapsRead struct {
	path  string
	limit int
	size  atomic.Int64 // bytes that were read
	state atomic.Int32 // readRuns, readEnded or readAbandoned
	done  chan mapsText
}

const (
	readRuns = iota
	readEnded
	readAbandoned
)

// readAndSend reads the text and sends it to done.
func (r *mapsRead) readAndSend() {
	text := r.readText()
	if !r.state.CompareAndSwap(readRuns, readEnded) {
		stuckReads.Delete(r.path)
	}
	r.done <- text
}

// stopWaiting ends the wait for a read. Until the read has ended, others of the same path give the same text. It returns false if the
// read has ended.
func (r *mapsRead) stopWaiting(text mapsText) bool {
	stuckReads.Store(r.path, text)
	abandoned := r.state.CompareAndSwap(readRuns, readAbandoned)
	if !abandoned {
		stuckReads.Delete(r.path)
	}
	return abandoned
}

// readMaps reads the mappings of a process. It stops after more than limit bytes.
func (m *mappedDevices) readMaps(path string, limit int) mapsText {
	if text, waits := stuckReads.Load(path); waits {
		return text.(mapsText) //nolint:forcetypeassert // the only type there
	}
	r := &mapsRead{path: path, limit: limit, done: make(chan mapsText, 1)}
	go r.readAndSend()
	wait := mapsTimeout
	if m.waited >= totalMapsTimeout {
		wait = 10 * time.Millisecond
	}
	for began, before := time.Now(), int64(0); ; {
		select {
		case text := <-r.done:
			return text
		case <-time.After(wait):
		}
		now := r.size.Load()
		if now > before && time.Since(began) < slowMapsTimeout {
			before = now
			continue
		}
		if now == before {
			m.waited += wait
		}
		text := mapsText{stuck: true}
		if now > 0 { // no time either for others of the same user
			text = mapsText{size: limit + 1, partial: true}
		}
		if !r.stopWaiting(text) {
			return <-r.done
		}
		return text
	}
}

// readText reads a text of the format of proc_pid_maps(5), and stops after more than limit bytes.
func (r *mapsRead) readText() (text mapsText) {
	f, err := os.Open(r.path)
	if err != nil { // without an end or a lack of rights there may be something to read
		text.partial = !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrPermission)
		return text
	}
	defer f.Close()
	seen := map[string]bool{}
	lines := bufio.NewReaderSize(f, 1<<16)
	for r.state.Load() != readAbandoned {
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
			r.size.Store(int64(text.size))
			line, err = lines.ReadSlice('\n')
			text.size += len(line)
		}
		r.size.Store(int64(text.size))
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, unix.ESRCH): // that is all, or the process has ended
			return text
		case err != nil || text.size > r.limit:
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
