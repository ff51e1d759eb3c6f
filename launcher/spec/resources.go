package spec

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/cpulist"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// Resources are the limits of a container. Zero means none.
type Resources struct {
	Memory int64 // bytes
	// MemorySwap is memory and swap together in bytes; less than zero means no limit.
	// MemoryReservation is the memory in bytes that the container keeps when the machine's memory runs
	// short.
	MemorySwap, MemoryReservation int64
	CPUQuota                      float64 // number of CPUs
	CPUShares                     uint64  // weight relative to other containers; the default is 1024
	// CPUs and MemoryNodes (NUMA nodes) are in list format. Without CPUs the container runs on those
	// near its devices, or on all. [New] ignores CPUs; [SetCPUs] sets them in the spec.
	CPUs, MemoryNodes string
	Shm               int64 // bytes of /dev/shm; zero means half of the machine's memory
	Pids              int64 // less than zero means no limit
	Ulimits           []specs.POSIXRlimit
	OOMScoreAdj       *int
}

// minMemory is docker's least memory for a container, in bytes.
const minMemory = 6 << 20

// check returns an error for limits with which the runtime would fail, or which it would ignore.
func (r Resources) check(h Host) error {
	switch {
	case r.Memory < 0 || r.Shm < 0 || r.CPUQuota < 0:
		return errors.New("memory, CPUs and the size of /dev/shm can't be negative")
	case r.CPUQuota > 0 && r.CPUQuota < 0.01:
		return fmt.Errorf("%v CPUs are less than the kernel can give: at least 0.01", r.CPUQuota)
	case r.Memory > 0 && r.Memory < minMemory:
		return fmt.Errorf("memory of %d bytes is too little to start in: at least %dm are needed", r.Memory, minMemory>>20)
	case r.MemorySwap > 0 && r.Memory == 0:
		return errors.New("--memory-swap is memory and swap together; say --memory too")
	case r.MemorySwap > 0 && r.MemorySwap < r.Memory:
		return errors.New("--memory-swap is memory and swap together, and can't be less than --memory")
	case r.Memory > 0 && r.MemoryReservation > r.Memory:
		return errors.New("--memory-reservation can't be more than --memory")
	case r.CPUShares == 1 || r.CPUShares > 262144:
		return fmt.Errorf("--cpu-shares %d: the kernel takes 2 to 262144", r.CPUShares)
	}
	return cmp.Or(checkUlimits(r.Ulimits, h), r.CheckControllers(h), r.checkMemoryNodes(), r.checkSwap(h), r.checkCPUs(), r.checkOOMScoreAdj(h))
}

// CheckControllers returns an error if the machine lacks a cgroup controller that a limit needs.
func (r Resources) CheckControllers(h Host) error {
	for _, need := range []struct {
		asked            bool
		controller, what string
	}{
		{r.Memory > 0 || r.MemoryReservation != 0 || r.MemorySwap != 0, "memory", "limit memory"},
		{r.CPUQuota > 0, "cpu", "limit CPUs"},
		{r.Pids > 0, "pids", "limit processes"},
		{r.CPUShares != 0, "cpu", "share CPUs"},
		{r.MemoryNodes != "", "cpuset", "choose NUMA nodes"},
	} {
		if need.asked {
			if err := h.RequireController(need.controller, need.what); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSwap returns an error on cgroup v1 if the kernel was booted without swap accounting.
func (r Resources) checkSwap(h Host) error {
	if r.MemorySwap == 0 || h.Cgroups.Version == cgroup.V2 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(cmp.Or(h.Cgroups.Mount, "/sys/fs/cgroup"), "memory/memory.memsw.limit_in_bytes")); err != nil {
		return errors.New("--memory-swap: this kernel doesn't count swap; boot it with swapaccount=1")
	}
	return nil
}

func (r Resources) checkOOMScoreAdj(h Host) error {
	if r.OOMScoreAdj == nil {
		return nil
	}
	adj := *r.OOMScoreAdj
	if adj < -1000 || adj > 1000 {
		return fmt.Errorf("--oom-score-adj %d: the kernel takes -1000 to 1000", adj)
	}
	own, err := smallfile.Int("/proc/self/oom_score_adj")
	if err == nil && adj < own && !h.MayExceedLimits() {
		return fmt.Errorf("--oom-score-adj %d: this process may not go below its own value, %d: CAP_SYS_RESOURCE is missing", adj, own)
	}
	return nil
}

func (r Resources) checkMemoryNodes() error {
	if r.MemoryNodes == "" {
		return nil
	}
	wanted, err := cpulist.Parse(r.MemoryNodes)
	if err != nil {
		return fmt.Errorf("--cpuset-mems %q is not a list of NUMA nodes, such as 0 or 0-1", r.MemoryNodes)
	}
	text, err := smallfile.String("/sys/devices/system/node/online")
	if err != nil {
		text = "0" // a kernel without NUMA has one node
	}
	online, err := cpulist.Parse(text)
	if err != nil {
		return nil // the kernel checks the list
	}
	for _, n := range wanted {
		if !slices.Contains(online, n) {
			return fmt.Errorf("--cpuset-mems %s: there is no NUMA node %d; the machine has %s", r.MemoryNodes, n, text)
		}
	}
	return nil
}

// checkCPUs returns an error if a CPU in r.CPUs can't be used. CPUs near a device are a preference and
// aren't checked.
func (r Resources) checkCPUs() error {
	if r.CPUs == "" {
		return nil
	}
	wanted, err := cpulist.Parse(r.CPUs)
	if err != nil {
		return err
	}
	usable, err := UsableCPUs(r.CPUs)
	switch {
	case err != nil:
		return err
	case len(usable) == 0:
		return fmt.Errorf("none of the CPUs %s can be used here", r.CPUs)
	case len(usable) < len(wanted):
		return fmt.Errorf("of the CPUs %s only %s can be used here", r.CPUs, cpulist.Format(usable))
	}
	return nil
}

// UsableCPUs returns the CPUs of a list in list format on which the calling thread may run.
func UsableCPUs(list string) ([]int, error) {
	wanted, err := cpulist.Parse(list)
	if err != nil {
		return nil, err
	}
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		return nil, fmt.Errorf("read own CPUs: %w", err)
	}
	return slices.DeleteFunc(wanted, func(cpu int) bool { return !mine.IsSet(cpu) }), nil
}

// SetCPUs sets the container's cpuset to CPUs in list format.
func SetCPUs(config *specs.Spec, list string) {
	if config.Linux.Resources.CPU == nil {
		config.Linux.Resources.CPU = &specs.LinuxCPU{}
	}
	config.Linux.Resources.CPU.Cpus = list
}

// ParseTime parses a time such as 90s or 2h; a bare number is in seconds, and "" is 0.
func ParseTime(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if n, e := strconv.ParseInt(text, 10, 32); e == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < 0 {
		return 0, errors.New("not a time, such as 90s or 2h")
	}
	return d, nil
}

// ParseSize parses a size in docker's form: b, k, m, g and t are powers of 1024.
func ParseSize(text string) (int64, error) {
	s := strings.ToLower(text)
	digits := strings.TrimRight(s, "bkmgti")
	shift, known := map[string]int{"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}[strings.TrimSuffix(strings.TrimSuffix(s[len(digits):], "b"), "i")]
	n, err := strconv.ParseFloat(digits, 64)
	plain := err == nil && n > 0 && strings.Trim(digits, "0123456789.") == ""
	if size := n * float64(int64(1)<<shift); plain && known && size >= 1 && size < math.MaxInt64/2 {
		return int64(size), nil
	}
	return 0, fmt.Errorf("%q is not a size, such as 512m or 64g", text)
}

func linuxResources(r Resources) *specs.LinuxResources {
	l := &specs.LinuxResources{Memory: linuxMemory(r), CPU: linuxCPU(r)}
	for _, rule := range deviceRules() {
		l.Devices = append(l.Devices, rule.Spec())
	}
	if r.Pids > 0 { // crun before 1.9 can't write "no limit" on cgroup v1
		l.Pids = &specs.LinuxPids{Limit: &r.Pids}
	}
	return l
}

func linuxMemory(r Resources) *specs.LinuxMemory {
	if r.Memory <= 0 && r.MemoryReservation <= 0 {
		return nil
	}
	m := &specs.LinuxMemory{}
	if r.Memory > 0 {
		m.Limit = &r.Memory
	}
	if r.MemorySwap != 0 {
		m.Swap = &r.MemorySwap
	}
	if r.MemoryReservation > 0 {
		m.Reservation = &r.MemoryReservation
	}
	return m
}

// cpuPeriod is the kernel's default scheduling period in microseconds.
const cpuPeriod = 100_000

func linuxCPU(r Resources) *specs.LinuxCPU {
	if r.CPUQuota <= 0 && r.CPUShares == 0 && r.MemoryNodes == "" {
		return nil
	}
	c := &specs.LinuxCPU{Mems: r.MemoryNodes}
	if r.CPUQuota > 0 {
		quota, period := int64(r.CPUQuota*cpuPeriod), uint64(cpuPeriod)
		c.Quota, c.Period = &quota, &period
	}
	if r.CPUShares > 0 {
		c.Shares = &r.CPUShares
	}
	return c
}

// RemoveCrunDefaults removes from a spec for crun the allowances of deviceRules, which crun adds to
// every container. Otherwise the cgroup's BPF program would contain them twice, and the kernel needs
// eight microseconds to verify an instruction. All other rules stay.
func RemoveCrunDefaults(spec *specs.Spec) {
	usual, r := deviceRules(), spec.Linux.Resources
	r.Devices = slices.DeleteFunc(r.Devices, func(d specs.LinuxDeviceCgroup) bool {
		return d.Allow && slices.Contains(usual, edits.FromSpec(d))
	})
}

// deviceRules returns the rules that allow the devices of every container and deny all others. Unlike
// docker's, they don't allow mknod of other devices: the runtime creates the nodes.
func deviceRules() []edits.Rule {
	rules := []edits.Rule{{Allow: false, Major: edits.Any, Minor: edits.Any, Access: "rwm"}}
	for _, d := range [][2]int64{
		{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, // null zero full random urandom
		{5, 0}, {5, 1}, {5, 2}, // tty console ptmx
	} {
		rules = append(rules, edits.Rule{Allow: true, Type: "c", Major: d[0], Minor: d[1], Access: "rwm"})
	}
	return append(rules, edits.Rule{Allow: true, Type: "c", Major: 136, Minor: edits.Any, Access: "rwm"}) // pts
}
