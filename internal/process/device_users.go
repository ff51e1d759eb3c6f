package process

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// maxFiles bounds the open files that a [DeviceSearch] looks at for one tenant, which takes 0.8 s of CPU time. Users decide
// how many there are. So many bytes of the list of mappings count as one open file, which takes as long.
const (
	maxFiles    = 1 << 18
	mapsPerFile = 256
)

// maxAllFiles bounds the open files of all tenants together.
const maxAllFiles = 8 * maxFiles

// DeviceSearch finds the processes that use devices. It must not be used by several goroutines at once.
type DeviceSearch struct {
	proc    string
	devices []uint64
	left    map[tenant]int // how many more open files of a tenant may be looked at
	leftAll int            // how many more of all
	skipped map[int]bool
	mapped  mappedDevices
}

// tenant is what shares the bound of a search. For a user that is the user alone: namespaces and root directories are free to make
// (unshare(2), chroot(2)). For root it is the PID namespace, which is a container's, and in that of the host also the root directory.
type tenant struct {
	user  int
	where Surroundings // zero for users
}

// NewDeviceSearch returns a search for devices by their numbers (st_rdev). proc is where procfs is mounted.
func NewDeviceSearch(proc string, devices []uint64) *DeviceSearch {
	return &DeviceSearch{proc: proc, devices: devices, left: map[tenant]int{}, leftAll: maxAllFiles, skipped: map[int]bool{}}
}

// Search returns the devices that each of the processes has open or mapped; processes without any aren't in the result. Those
// that end during the search are left out, and so are the mappings of processes whose mappings can't be read at all. A process
// counts as if it had every device open if it is stuck (see [ErrStuck]), if its mappings change all the time or come too slowly, or if the processes of its user,
// or of root in its container, have more than 262,144 files open together, or 64 MiB of text about mapped memory
// (some 600,000 mappings), of which it comes last.
func (s *DeviceSearch) Search(pids []int) (users map[int][]uint64) {
	users = map[int][]uint64{}
	for _, pid := range pids {
		open, all := s.searchProcess(pid)
		if s.skipped[pid] = !all; !all {
			open = slices.Clone(s.devices)
		}
		if len(open) > 0 {
			users[pid] = open
		}
	}
	return users
}

// Searched reports whether the last result for a process is what it has open, and not an assumption.
func (s *DeviceSearch) Searched(pid int) bool { return !s.skipped[pid] }

func (s *DeviceSearch) searchProcess(pid int) (open []uint64, all bool) {
	who, err := s.tenantOf(pid)
	if errors.Is(err, ErrStuck) {
		return nil, false
	}
	if _, known := s.left[who]; !known {
		s.left[who] = maxFiles
	}
	err = listFiles(s.proc, pid, func(f OpenFile) bool {
		if !s.countFiles(who, 1) {
			return false
		}
		// A descriptor made with O_PATH uses no device, and needs no right to open it.
		if slices.Contains(s.devices, f.Device) && !f.isPath() {
			open = s.appendDevice(open, f.Device)
		}
		return true
	})
	if err != nil { // too many files, or a stuck process
		return nil, false
	}
	mapped, size, all := s.mapped.listDevices(s.proc, pid, max(0, min(s.left[who], s.leftAll))*mapsPerFile)
	s.countFiles(who, (size+mapsPerFile-1)/mapsPerFile)
	if !all {
		return nil, false
	}
	for _, device := range mapped {
		open = s.appendDevice(open, device)
	}
	return open, true
}

// tenantOf returns whose a process is; the zero tenant stands for processes that have ended. The error Is ErrStuck if that can't be read.
func (s *DeviceSearch) tenantOf(pid int) (who tenant, err error) {
	where, err := ReadSurroundings(s.proc, strconv.Itoa(pid))
	if err != nil {
		return tenant{}, err
	}
	user, err := accountableUser(s.proc, pid)
	switch {
	case err != nil:
		return tenant{}, err
	case user != 0:
		return tenant{user: user}, nil
	}
	if own, err := ReadSurroundings(s.proc, "self"); err == nil && !where.SharesPIDs(own) {
		where = Surroundings{namespace: where.namespace}
	}
	return tenant{where: where}, nil
}

// countFiles counts files of a tenant. It returns false if there are more than may be looked at.
func (s *DeviceSearch) countFiles(who tenant, files int) bool {
	s.left[who] -= files
	s.leftAll -= files
	return s.left[who] >= 0 && s.leftAll >= 0
}

// accountableUser returns the real user of a process. For a process in a user namespace of its own that is the user who has made the
// namespace, as this process sees it, because such a process can have many user ids.
func accountableUser(proc string, pid int) (uid int, err error) {
	if uid, err = readBounded(proc, pid, func() (int, error) {
		return namespaceOwner(proc+"/"+strconv.Itoa(pid)+"/ns/user", proc+"/self/ns/user")
	}); err != nil || uid >= 0 {
		return uid, err
	}
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	_, rest, _ := strings.Cut(string(status), "\nUid:\t")
	text, _, _ := strings.Cut(rest, "\t")
	if err == nil {
		uid, err = strconv.Atoi(text)
	}
	return uid, err
}

// namespaceOwner returns who has made the user namespace at a path, or of its ancestors that one whose parent is the namespace at own. It is -1
// for own itself.
func namespaceOwner(path, own string) (uid int, err error) {
	const nsGetParent, nsGetOwner = 0xb702, 0xb704 // NS_GET_PARENT and NS_GET_OWNER_UID of ioctl_ns(2)
	var ours, at unix.Stat_t
	if err := unix.Stat(own, &ours); err != nil {
		return 0, &os.PathError{Op: "stat", Path: own, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	for uid = -1; ; {
		if err := unix.Fstat(fd, &at); err != nil || at.Dev == ours.Dev && at.Ino == ours.Ino {
			return uid, err
		}
		owner, err := unix.IoctlGetUint32(fd, nsGetOwner)
		if err != nil {
			return 0, err
		}
		uid = int(owner)
		parent, err := unix.IoctlRetInt(fd, nsGetParent)
		if err != nil { // this process is in a namespace below
			return uid, nil //nolint:nilerr // the owner is as visible as it gets
		}
		_ = unix.Close(fd)
		fd = parent
	}
}

// appendDevice adds one of the searched devices, once.
func (s *DeviceSearch) appendDevice(open []uint64, device uint64) []uint64 {
	if !slices.Contains(s.devices, device) || slices.Contains(open, device) {
		return open
	}
	return append(open, device)
}
