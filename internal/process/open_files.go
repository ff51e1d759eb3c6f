package process

import (
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
// answer can't block the search.
func FilesOf(proc string, pid int) iter.Seq[OpenFile] {
	return func(yield func(OpenFile) bool) {
		dir := proc + "/" + strconv.Itoa(pid)
		some, more := readDescriptors(dir, pid, yield)
		last := pid                                       // a thread whose descriptors were read
		threads, _ := filepath.Glob(dir + "/task/[0-9]*") // the pattern is well-formed
		for _, thread := range threads {
			id, err := strconv.Atoi(filepath.Base(thread))
			// The first thread has no descriptors if it has ended before the others.
			if err != nil || !more || id == pid || some && (shareFiles(pid, id) || shareFiles(last, id)) {
				continue
			}
			var found bool
			if found, more = readDescriptors(thread, pid, yield); found {
				some, last = true, id
			}
		}
	}
}

// shareFiles reports whether two threads have the same descriptors. It is false if that can't be told.
func shareFiles(a, b int) bool {
	const files = 2 // KCMP_FILES of kcmp(2)
	differ, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return err == 0 && differ == 0
}

// readDescriptors yields the files of a thread, whose directory in procfs is dir. It reports whether there was any
// descriptor, and whether the caller wants more.
func readDescriptors(dir string, pid int, yield func(OpenFile) bool) (some, more bool) {
	d, err := os.Open(dir + "/fd")
	if err != nil {
		return false, true
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024) // the error is that there are no more, or that the process has ended
		for _, name := range names {
			var st unix.Statx_t
			err := unix.Statx(int(d.Fd()), name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, &st)
			if err != nil {
				continue // it was closed
			}
			f := OpenFile{PID: pid, FileSystem: unix.Mkdev(st.Dev_major, st.Dev_minor), Inode: st.Ino, dir: dir, descriptor: name}
			if st.Mode&unix.S_IFMT == unix.S_IFCHR {
				f.Device = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
			}
			if !yield(f) {
				return true, false
			}
		}
		some = some || len(names) > 0
		if err != nil {
			return some, true
		}
	}
}
