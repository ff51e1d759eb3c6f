package process

import (
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxFiles bounds the open files that a [DeviceSearch] looks at for one tenant, which takes 0.8 s of CPU time. Users decide
// how many there are. So many bytes of the list of mappings count as one open file, which takes as long.
const (
	maxFiles    = 1 << 18
	mapsPerFile = 256
)

// DeviceSearch finds the processes that use devices. It must not be used by several goroutines at once.
type DeviceSearch struct {
	proc    string
	devices []uint64
	left    map[tenant]int // how many more open files of a tenant may be looked at
	skipped map[int]bool
	mapped  mappedDevices
}

// tenant is what shares the bound of a search: a container, or on the host the owner of processes.
type tenant struct {
	where Surroundings
	owner uint32
}

// NewDeviceSearch returns a search for devices by their numbers (st_rdev). proc is where procfs is mounted.
func NewDeviceSearch(proc string, devices []uint64) *DeviceSearch {
	return &DeviceSearch{proc: proc, devices: devices, left: map[tenant]int{}, skipped: map[int]bool{}}
}

// Search returns the devices that each of the processes has open or mapped; processes without any aren't in the result. Those
// that end during the search are left out, and so are the mappings of processes whose mappings can't be read at all. A process
// counts as if it had every device open if it is stuck (see [ErrStuck]), if its mappings change all the time or come too slowly, or if the processes of its container,
// or outside of containers those of its user, have more than 262,144 files open together, or 64 MiB of text about mapped memory
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
		if s.left[who]--; s.left[who] < 0 {
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
	mapped, size, all := s.mapped.listDevices(s.proc, pid, s.left[who]*mapsPerFile)
	s.left[who] -= (size + mapsPerFile - 1) / mapsPerFile
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
	var st unix.Stat_t
	_ = unix.Stat(s.proc+"/"+strconv.Itoa(pid), &st) // root's if it has ended
	return tenant{where, st.Uid}, nil
}

// appendDevice adds one of the searched devices, once.
func (s *DeviceSearch) appendDevice(open []uint64, device uint64) []uint64 {
	if !slices.Contains(s.devices, device) || slices.Contains(open, device) {
		return open
	}
	return append(open, device)
}
