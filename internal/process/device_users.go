package process

import "slices"

// maxFiles bounds the open files that [FindDeviceUsers] looks at, which takes 3 s of CPU time, and usualFiles those that most
// processes stay below. Users decide how many there are: processes with more come last.
const (
	maxFiles   = 1 << 20
	usualFiles = 1 << 12
)

// FindDeviceUsers returns the devices that processes have open or mapped, by process. Devices are given by their numbers
// (st_rdev); proc is where procfs is mounted. Processes that end during the search are left out. Processes that aren't
// looked at, because all together have more than a million files open, count as if they had every device open.
func FindDeviceUsers(proc string, pids []int, devices []uint64) (users map[int][]uint64) {
	s := deviceSearch{proc: proc, devices: devices, left: maxFiles}
	return s.searchAll(pids)
}

type deviceSearch struct {
	proc    string
	devices []uint64
	left    int // how many more open files may be looked at
	mapped  mappedDevices
}

func (s *deviceSearch) searchAll(pids []int) map[int][]uint64 {
	users := map[int][]uint64{}
	add := func(pid int, open []uint64) {
		if len(open) > 0 {
			users[pid] = open
		}
	}
	var large []int
	for _, pid := range pids {
		if open, all := s.search(pid, usualFiles); all {
			add(pid, open)
		} else {
			large = append(large, pid)
		}
	}
	for _, pid := range large {
		open, all := s.search(pid, maxFiles)
		if !all {
			open = s.devices
		}
		add(pid, open)
	}
	return users
}

// search returns the devices that a process has open or mapped. all is false if the process has more files open than limit, or
// more than may be looked at.
func (s *deviceSearch) search(pid, limit int) (open []uint64, all bool) {
	for f := range FilesOf(s.proc, pid) {
		if limit, s.left = limit-1, s.left-1; limit < 0 || s.left < 0 {
			return nil, false
		}
		open = s.appendDevice(open, f.Device)
	}
	for _, device := range s.mapped.list(s.proc, pid) {
		open = s.appendDevice(open, device)
	}
	return open, true
}

// appendDevice adds one of the searched devices, once.
func (s *deviceSearch) appendDevice(open []uint64, device uint64) []uint64 {
	if !slices.Contains(s.devices, device) || slices.Contains(open, device) {
		return open
	}
	return append(open, device)
}
