package launcher

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// placeOn keeps the task on CPUs in list format, as far as this process may use
// them: by a cpuset where the controller is there, by the affinity of the calling
// thread, which the runtime inherits, where it isn't. CPUs that the user asked
// for must exist; those near a device are a preference. A gang's rank is started by its
// monitor, which is told.
func (t *task) placeOn(list string, spec *specs.Spec) error {
	if list == "" {
		return nil
	}
	wanted, err := parseCPUs(list)
	if err != nil {
		return err
	}
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		return fmt.Errorf("read own CPUs: %w", err)
	}
	usable := intersect(wanted, mine)
	if len(usable) == 0 {
		if t.o.CPUs != "" {
			return fmt.Errorf("none of the CPUs %s can be used here", list)
		}
		t.o.Log.Info("no CPU near the devices can be used", "near", list)
		return nil
	}
	if t.h.tree.HasController("cpuset") {
		if spec.Linux.Resources.CPU == nil {
			spec.Linux.Resources.CPU = &specs.LinuxCPU{}
		}
		spec.Linux.Resources.CPU.Cpus = formatCPUs(usable)
		return nil
	}
	if t.plan.member != nil {
		t.rec.CPUs = formatCPUs(usable)
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range usable {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("keep the task on CPUs %s: %w", list, err)
	}
	return nil
}

// maxCPU bounds what a list may name, so that a range can't be made huge.
const maxCPU = 1 << 16

// parseCPUs reads the kernel's list format: "0-3,8".
func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 0 || b < a || b >= maxCPU {
			return nil, fmt.Errorf("CPU list %q: %q is neither a number nor a range", list, part)
		}
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	return cpus, nil
}

func intersect(cpus []int, set unix.CPUSet) []int {
	var both []int
	for _, cpu := range cpus {
		if set.IsSet(cpu) {
			both = append(both, cpu)
		}
	}
	return both
}

func formatCPUs(cpus []int) string {
	text := make([]string, len(cpus))
	for i, cpu := range cpus {
		text[i] = strconv.Itoa(cpu)
	}
	return strings.Join(text, ",")
}
