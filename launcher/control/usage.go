package control

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Sample is the resource usage of a task at one time.
type Sample struct {
	At time.Time
	cgroup.Usage
}

// Measure reads the resource usage of a task's container. MemoryLimit is at most the machine's memory.
// The error Is fs.ErrNotExist if the container has ended.
func Measure(t tasks.Task) (Sample, error) {
	cgroups, err := cgroup.Detect(t.CgroupMount)
	if err != nil {
		return Sample{}, err
	}
	u, err := cgroups.ReadUsage(t.Cgroup + "/container")
	if err != nil {
		return Sample{}, err
	}
	if all := machineMemory(); u.MemoryLimit == 0 || all > 0 && u.MemoryLimit > all {
		u.MemoryLimit = all
	}
	return Sample{At: time.Now(), Usage: u}, nil
}

// CPUSince returns the CPU time since an earlier sample, in percent of one CPU.
func (s Sample) CPUSince(before Sample) float64 {
	passed := s.At.Sub(before.At)
	if passed <= 0 || s.CPU < before.CPU {
		return 0 // the task was restarted in between
	}
	return 100 * float64(s.CPU-before.CPU) / float64(passed)
}

// machineMemory returns the machine's memory in bytes, 0 if unknown.
func machineMemory() uint64 {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return 0
	}
	return machine.Totalram * uint64(machine.Unit)
}
