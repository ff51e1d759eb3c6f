package lock

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// FindHolders returns the processes that hold a lock of flock(2) on each of several open files, in the order of the files.
// Processes outside of this PID namespace, and those whose descriptors the caller may not read, are left out. A descriptor
// made with O_PATH suffices.
//
// The kernel records which process took a lock. Others that inherited the descriptor also hold the lock: they are only
// found once that process doesn't hold it any more. Only then, and where the kernel doesn't show all locks, are the
// descriptors of all processes read, which takes 5 µs for each.
func FindHolders(fds ...int) [][]Holder {
	var files []lockedFile
	for _, fd := range fds {
		files = append(files, describeFile(fd))
	}
	all := make([][]Holder, len(files))
	for i, pids := range findHolders("/proc", files) {
		for _, pid := range pids {
			if h, err := describeHolder(pid); err == nil {
				all[i] = append(all[i], h)
			}
		}
	}
	return all
}

// lockedFile is a file whose lock is searched for.
type lockedFile struct {
	// fileSystem and inode identify the file for stat(2).
	fileSystem, inode uint64
	// name identifies it in /proc/locks, such as "fe:00:1234": on btrfs and overlayfs the numbers are not those of stat(2).
	// It is "" if it is unknown, as before Linux 5.14.
	name string
}

// maxMountInfo bounds /proc/self/mountinfo in bytes.
const maxMountInfo = 4 << 20

func describeFile(fd int) (f lockedFile) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return f // no process has a file with the inode 0
	}
	f.fileSystem, f.inode = st.Dev, st.Ino
	info, err := smallfile.String("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return f
	}
	var mount, inode string
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "mnt_id":
			mount = strings.TrimSpace(value)
		case "ino":
			inode = strings.TrimSpace(value)
		}
	}
	table, err := smallfile.Read("/proc/self/mountinfo", maxMountInfo)
	if err != nil || inode == "" {
		return f
	}
	for line := range strings.Lines(string(table)) {
		var id string
		var parent, major, minor int
		if n, err := fmt.Sscanf(line, "%s %d %d:%d", &id, &parent, &major, &minor); n == 4 && err == nil && id == mount {
			f.name = fmt.Sprintf("%02x:%02x:%s", major, minor, inode)
		}
	}
	return f
}

// findHolders returns the pids of each file's holders. proc is where procfs is mounted.
func findHolders(proc string, files []lockedFile) [][]int {
	for range 3 { // a lock that is held briefly can be released between the steps
		takers, ok := readTakers(proc, files)
		if !ok {
			break
		}
		isTaker := map[int]bool{}
		for _, pid := range slices.Concat(takers...) {
			isTaker[pid] = true
		}
		if len(isTaker) == 0 {
			return make([][]int, len(files))
		}
		found := searchDescriptors(proc, files, func(pid int) bool { return !isTaker[pid] })
		for i := range files {
			ok = ok && (len(found[i]) > 0 || len(takers[i]) == 0)
		}
		if ok {
			return found
		}
	}
	return searchDescriptors(proc, files, nil)
}

// maxLocks bounds /proc/locks in bytes. Any process can take any number of locks, and for each page the kernel walks
// through all previous locks.
const maxLocks = 1 << 20

// firstPIDNamespace is the machine's first pid namespace: PROC_PID_INIT_INO of the kernel's linux/proc_ns.h.
const firstPIDNamespace = "pid:[4026531836]"

// readTakers returns the processes that took the lock of each file, which may have ended since. ok is false if it may miss
// a lock: in other pid namespaces than the first the kernel doesn't show a lock whose taker has ended or is outside.
func readTakers(proc string, files []lockedFile) (takers [][]int, ok bool) {
	if namespace, err := os.Readlink(proc + "/self/ns/pid"); err != nil || namespace != firstPIDNamespace {
		return nil, false
	}
	if slices.ContainsFunc(files, func(f lockedFile) bool { return f.name == "" }) {
		return nil, false
	}
	data, err := smallfile.Read(proc+"/locks", maxLocks)
	if err != nil {
		return nil, false
	}
	takers = make([][]int, len(files))
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line) // "1: FLOCK ADVISORY WRITE 9249 fe:00:9978108 0 EOF"; "->" would mark one that waits
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		for i := range files {
			if pid, err := strconv.Atoi(f[4]); err == nil && f[5] == files[i].name {
				takers[i] = append(takers[i], pid)
			}
		}
	}
	return takers, true
}

// searchDescriptors returns the pids of the processes that hold a lock on each file.
func searchDescriptors(proc string, files []lockedFile, skip func(pid int) bool) [][]int {
	found := make([][]int, len(files))
	for open := range process.OpenFiles(proc, skip) {
		for i, file := range files {
			if open.Inode == file.inode && open.FileSystem == file.fileSystem &&
				!slices.Contains(found[i], open.PID) && hasLock(open) {
				found[i] = append(found[i], open.PID)
			}
		}
	}
	return found
}

// hasLock reports whether a descriptor has a lock of flock(2).
func hasLock(open process.OpenFile) bool {
	info, err := smallfile.String(open.InfoPath())
	return err == nil && strings.Contains(info, "FLOCK")
}
