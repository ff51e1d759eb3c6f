package process

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// OpenFile is a file that a process has open.
type OpenFile struct {
	PID int
	// Device is the device's number (st_rdev) of a character device, whatever its node is called, and 0 of other files.
	Device uint64
	// FileSystem and Inode identify the file (st_dev, st_ino).
	FileSystem, Inode uint64

	dir, descriptor string
}

// InfoPath returns the path of the file that describes the descriptor: see proc_pid_fdinfo(5).
func (f OpenFile) InfoPath() string { return filepath.Join(f.dir, "fdinfo", f.descriptor) }

// isPath reports whether the descriptor was made with O_PATH. It is false if that can't be told.
func (f OpenFile) isPath() bool {
	info, err := smallfile.Read(f.InfoPath(), maxStatus)
	_, rest, _ := strings.Cut(string(info), "flags:")
	line, _, _ := strings.Cut(rest, "\n")
	flags, e := strconv.ParseUint(strings.TrimSpace(line), 8, 64)
	return err == nil && e == nil && flags&unix.O_PATH != 0
}

// OpenFiles yields the files of each process, as [FilesOf] does. proc is where procfs is mounted. Processes that start or
// end during the search may be left out. Nothing is read of a process for which skip returns true; a nil skip skips none.
func OpenFiles(proc string, skip func(pid int) bool) iter.Seq[OpenFile] {
	return func(yield func(OpenFile) bool) {
		for _, pid := range List(proc) {
			if skip != nil && skip(pid) {
				continue
			}
			for f := range FilesOf(proc, pid) {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// List returns the pids of all processes. proc is where procfs is mounted; without procfs the list is empty.
func List(proc string) (pids []int) {
	dirs, _ := filepath.Glob(proc + "/[0-9]*") // the pattern is well-formed
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// FilesOf yields the file of each descriptor of a process, also of threads that have descriptors of their own. A
// descriptor made with O_PATH counts. Nothing is yielded of a process that has ended, or whose descriptors the caller
// may not read.
//
// A process decides how many descriptors it has: a caller that may not take long must count them. One takes 3 to 5 µs of
// CPU time, most of it for the kernel's objects behind the names in /proc/PID/fd: readlink(2) takes as long as statx(2), and
// reading fdinfo takes twice as long. The descriptors are those of a process's first thread, as long as that lives: a thread
// can have others (CLONE_FILES of unshare(2)).
//
// Attributes are read without a request to a file's server, so that a network file system that doesn't
// answer can't block the search. The rest of the files of a stuck process isn't yielded, see [ErrStuck].
func FilesOf(proc string, pid int) iter.Seq[OpenFile] {
	return func(yield func(OpenFile) bool) { _ = listFiles(proc, pid, yield) }
}

// errEnough means that the caller of listFiles wants no more files.
var errEnough = errors.New("enough")

// listFiles calls yield with each file that [FilesOf] yields. The error is ErrStuck if that aren't all, and errEnough if yield has
// returned false.
func listFiles(proc string, pid int, yield func(OpenFile) bool) error {
	dir := proc + "/" + strconv.Itoa(pid)
	l := descriptorList{proc: proc, pid: pid, yield: yield}
	some, err := l.readThread(dir)
	last := pid                                       // a thread whose descriptors were read
	threads, _ := filepath.Glob(dir + "/task/[0-9]*") // the pattern is well-formed
	for i := 0; i < len(threads) && err == nil; i++ {
		id, e := strconv.Atoi(filepath.Base(threads[i]))
		if e != nil || id == pid {
			continue
		}
		if some { // the first thread has no descriptors if it has ended before the others
			var shared bool
			if shared, err = readBounded(proc, pid, func() (bool, error) { return shareFiles(pid, id) || shareFiles(last, id), nil }); shared {
				continue
			}
		}
		var found bool
		if err == nil {
			found, err = l.readThread(threads[i])
		}
		if found {
			some, last = true, id
		}
	}
	return err
}

// shareFiles reports whether two threads have the same descriptors. It is false if that can't be told.
func shareFiles(a, b int) bool {
	const files = 2 // KCMP_FILES of kcmp(2)
	differ, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return err == 0 && differ == 0
}

// descriptorList reads the descriptors of a process.
type descriptorList struct {
	proc  string
	pid   int
	yield func(OpenFile) bool
}

// descriptorsAtOnce is how many files are described in one bounded read. That takes about a millisecond.
const descriptorsAtOnce = 256

// readThread yields the files of a thread, whose directory in procfs is dir. It reports whether there was any descriptor.
func (l descriptorList) readThread(dir string) (some bool, err error) {
	d, err := os.Open(dir + "/fd")
	if err != nil {
		return false, nil //nolint:nilerr // it has ended, or the caller may not read it
	}
	some, err = l.readDirectory(d, dir)
	if !errors.Is(err, ErrStuck) { // else the read that waits still uses it, and it is closed when it is unreachable
		d.Close()
	}
	return some, err
}

func (l descriptorList) readDirectory(d *os.File, dir string) (some bool, err error) {
	for {
		names, end := d.Readdirnames(descriptorsAtOnce) // the error is that there are no more, or that the process has ended
		some = some || len(names) > 0
		if len(names) > 0 {
			files, err := readBounded(l.proc, l.pid, func() ([]OpenFile, error) { return l.describeFiles(d, dir, names), nil })
			if err != nil {
				return some, err
			}
			for _, f := range files {
				if !l.yield(f) {
					return some, errEnough
				}
			}
		}
		if end != nil {
			return some, nil
		}
	}
}

// describeFiles returns the files of descriptors. d is the directory of the descriptors in dir.
func (l descriptorList) describeFiles(d *os.File, dir string, names []string) (files []OpenFile) {
	files = make([]OpenFile, 0, len(names))
	for _, name := range names {
		var st unix.Statx_t
		err := unix.Statx(int(d.Fd()), name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, &st)
		if err != nil {
			continue // it was closed
		}
		f := OpenFile{PID: l.pid, FileSystem: unix.Mkdev(st.Dev_major, st.Dev_minor), Inode: st.Ino, dir: dir, descriptor: name}
		if st.Mode&unix.S_IFMT == unix.S_IFCHR {
			f.Device = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
		}
		files = append(files, f)
	}
	return files
}
