package control

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Sample is what a task used until a moment.
type Sample struct {
	At time.Time
	cgroup.Usage
}

// Measure reads what a task's container uses. Without a limit, its memory is limited by
// the machine's. The error Is fs.ErrNotExist if the container is gone.
func Measure(t tasks.Task) (Sample, error) {
	tree, err := cgroup.Detect(t.CgroupMount)
	if err != nil {
		return Sample{}, err
	}
	u, err := tree.ReadUsage(t.Cgroup + "/container")
	if err != nil {
		return Sample{}, err
	}
	if all := machineMemory(); u.MemoryLimit == 0 || all > 0 && u.MemoryLimit > all {
		u.MemoryLimit = all
	}
	return Sample{At: time.Now(), Usage: u}, nil
}

// CPUSince is the CPU time since an earlier sample, in percent of one CPU.
func (s Sample) CPUSince(before Sample) float64 {
	passed := s.At.Sub(before.At)
	if passed <= 0 || s.CPU < before.CPU {
		return 0 // the container was made anew in between
	}
	return 100 * float64(s.CPU-before.CPU) / float64(passed)
}

// machineMemory in bytes, 0 if unknown.
func machineMemory() uint64 {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return 0
	}
	return machine.Totalram * uint64(machine.Unit)
}
