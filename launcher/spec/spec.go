// Package spec says what an OCI runtime is told about a task: namespaces,
// capabilities, mounts, limits, device rules and the system call filter.
//
// The defaults are those that people know from Docker, with these differences:
// CAP_MKNOD is missing, no_new_privileges is set, /dev/shm is as large as the
// kernel makes it (half of memory) instead of 64 MiB, and NUMA memory policy may
// be set, because NCCL needs both. Devices of a lease aren't known here; whoever
// holds the lease edits the spec.
//
// [Spec] touches nothing. The spec is written in the words of runtime-spec 1.0.2
// so that old runtimes take it.
package spec

import (
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/launcher/rootfs"
)

// Task is what a spec is made from. It must be complete: nothing is looked up.
type Task struct {
	Args     []string
	Env      []string // "K=V"; the last of a name counts
	Dir      string
	User     rootfs.User
	Terminal bool
	Console  *specs.Box // size of the terminal at the start, nil if unknown
	Hostname string
	Root     string // absolute path of the root file system
	ReadOnly bool   // the task can't write to it
	Cgroup   string // absolute cgroup path
	// HostNetwork shares the host's network; otherwise there is a loopback device.
	HostNetwork bool
	// CgroupNamespace hides the host's cgroups; v2 only.
	CgroupNamespace bool
	// HostIPC and HostUTS share these with the host.
	HostIPC, HostUTS bool
	// Join are namespaces that are there, by their paths, in place of new ones.
	Join map[specs.LinuxNamespaceType]string
	// Shm is a directory that becomes /dev/shm; "" is memory of the task's own.
	Shm string
	// Files are binds over files that each task has of its own, by destination.
	Files map[string]string
	// Mounts are the user's.
	Mounts []specs.Mount
	Limits Limits
	// Host is what this process may give away.
	Host Host
	// Capabilities of the task's root; nil means the usual.
	Capabilities *Capabilities
	// Filter is the one of Capabilities if it is nil.
	Filter *Filter
	// NewPrivileges lets programs raise theirs, as by set-uid.
	NewPrivileges bool
	// AppArmor is a profile's name, "" the task's own.
	AppArmor string
	// MaskedPaths are hidden in addition to the usual ones.
	MaskedPaths []string
	// Exposed hides no paths, and has kernel file systems that can be written to.
	Exposed bool
	// Annotations, kernel parameters, and limits of single processes that take the
	// place of the usual.
	Annotations map[string]string
	Sysctls     map[string]string
	Rlimits     []specs.POSIXRlimit
	OOMScoreAdj *int
}

// Limits of a task; zero means none.
type Limits struct {
	Memory int64   // bytes
	CPUs   float64 // how many CPUs' time
	CPUSet string  // list format
	Shm    int64   // bytes of /dev/shm
	// MemorySwap is memory and swap together, and Pids the most processes; less than
	// zero means no limit. MemoryReservation is what the task is left with when memory
	// runs short.
	MemorySwap, MemoryReservation, Pids int64
	CPUShares                           uint64 // weight among others; the usual one is 1024
	MemoryNodes                         string // NUMA nodes in list format
}

// Host is what the launching process may give away.
type Host struct {
	// Capabilities is the permitted set as a bit mask.
	Capabilities uint64
	// NoFile and Memlock are the hard limits.
	NoFile, Memlock uint64
}

// cpuPeriod is the kernel's default scheduling period in microseconds.
const cpuPeriod = 100_000

// Spec returns the spec of a task.
func Spec(t Task) *specs.Spec {
	if t.Capabilities == nil {
		t.Capabilities = &Capabilities{Names: capabilities(t.Host.Capabilities)}
	}
	if t.Filter == nil {
		t.Filter = NewFilter(*t.Capabilities)
	}
	spec := &specs.Spec{
		Version:     "1.0.2",
		Hostname:    t.Hostname,
		Annotations: annotations(t),
		Root:        &specs.Root{Path: t.Root, Readonly: t.ReadOnly},
		Process: &specs.Process{
			Terminal:        t.Terminal,
			ConsoleSize:     t.Console,
			User:            specs.User{UID: t.User.UID, GID: t.User.GID, AdditionalGids: t.User.Groups},
			Args:            t.Args,
			Env:             environment(t),
			Cwd:             t.Dir,
			Capabilities:    capabilitiesOf(t.User, t.Capabilities.Names),
			Rlimits:         withLimits(rlimits(t.Host), t.Rlimits),
			NoNewPrivileges: !t.NewPrivileges,
			ApparmorProfile: t.AppArmor,
			OOMScoreAdj:     t.OOMScoreAdj,
		},
		Mounts: mounts(t),
		Linux: &specs.Linux{
			Namespaces:        namespaces(t),
			CgroupsPath:       t.Cgroup,
			Resources:         resources(t.Limits),
			RootfsPropagation: "private",
			MaskedPaths:       append(maskedPaths(), t.MaskedPaths...),
			ReadonlyPaths:     []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			Sysctl:            t.Sysctls,
			Seccomp:           t.Filter.calls,
		},
	}
	if t.Exposed {
		spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths = nil, nil
	}
	if t.HostUTS {
		spec.Hostname = "" // the host's, which nobody is to change
	}
	return spec
}

// annotations are the task's and those that the runtime is told.
func annotations(t Task) map[string]string {
	if len(t.Annotations) == 0 {
		return maps.Clone(t.Filter.annotations)
	}
	all := maps.Clone(t.Annotations)
	maps.Copy(all, t.Filter.annotations)
	return all
}

// defaultPath is used where the image sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func environment(t Task) []string {
	set := map[string]string{"PATH": defaultPath, "HOME": t.User.Home, "HOSTNAME": t.Hostname}
	if t.Terminal {
		set["TERM"] = "xterm"
	}
	var order []string
	for _, kv := range t.Env {
		k, v, _ := strings.Cut(kv, "=")
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
		set[k] = v
	}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
	}
	env := make([]string, 0, len(order))
	for _, k := range order {
		env = append(env, k+"="+set[k])
	}
	return env
}

// Getenv returns what a task will see under that name.
func Getenv(t Task, name string) string {
	for _, kv := range environment(t) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func namespaces(t Task) []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
	if !t.HostIPC {
		all = append(all, specs.LinuxNamespace{Type: specs.IPCNamespace})
	}
	if !t.HostUTS {
		all = append(all, specs.LinuxNamespace{Type: specs.UTSNamespace})
	}
	all = append(all, specs.LinuxNamespace{Type: specs.MountNamespace})
	if !t.HostNetwork {
		all = append(all, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	if t.CgroupNamespace {
		all = append(all, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	for i := range all {
		all[i].Path = t.Join[all[i].Type]
	}
	return all
}

func resources(l Limits) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: deviceRules(), Memory: memory(l), CPU: cpu(l)}
	if l.Pids > 0 { // less than zero is none, which crun before 1.9 can't write on version 1
		r.Pids = &specs.LinuxPids{Limit: &l.Pids}
	}
	return r
}

func memory(l Limits) *specs.LinuxMemory {
	if l.Memory <= 0 && l.MemoryReservation <= 0 {
		return nil
	}
	m := &specs.LinuxMemory{}
	if l.Memory > 0 {
		m.Limit = &l.Memory
	}
	if l.MemorySwap != 0 {
		m.Swap = &l.MemorySwap
	}
	if l.MemoryReservation > 0 {
		m.Reservation = &l.MemoryReservation
	}
	return m
}

func cpu(l Limits) *specs.LinuxCPU {
	if l.CPUs <= 0 && l.CPUSet == "" && l.CPUShares == 0 && l.MemoryNodes == "" {
		return nil
	}
	c := &specs.LinuxCPU{Cpus: l.CPUSet, Mems: l.MemoryNodes}
	if l.CPUs > 0 {
		quota, period := int64(l.CPUs*cpuPeriod), uint64(cpuPeriod)
		c.Quota, c.Period = &quota, &period
	}
	if l.CPUShares > 0 {
		c.Shares = &l.CPUShares
	}
	return c
}

// deviceRules allows what every container has, and denies all else. Nodes may
// not even be made (no wildcard "m" rule): the runtime makes those it needs.
func deviceRules() []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range [][2]int64{
		{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, // null zero full random urandom
		{5, 0}, {5, 1}, {5, 2}, // tty console ptmx
	} {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d[0], Minor: &d[1], Access: "rwm"})
	}
	pts := int64(136)
	return append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &pts, Access: "rwm"})
}

// minNoFile is how many open files NCCL wants on a large node.
const minNoFile = 128 << 10

// rlimits raises what this process may raise, and names nothing else: a limit
// that isn't named is inherited.
func rlimits(h Host) []specs.POSIXRlimit {
	const unlimited = ^uint64(0)
	var limits []specs.POSIXRlimit
	mayRaise := h.Capabilities&(1<<capSysResource) != 0
	if hard := h.NoFile; hard > 0 || mayRaise {
		if mayRaise {
			hard = max(hard, minNoFile)
		}
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: hard, Soft: min(hard, minNoFile)})
	}
	if mayRaise || h.Memlock == unlimited {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Hard: unlimited, Soft: unlimited})
	}
	return limits
}

// withLimits puts those that were asked for in the place of the usual.
func withLimits(usual, asked []specs.POSIXRlimit) []specs.POSIXRlimit {
	for _, a := range asked {
		at := slices.IndexFunc(usual, func(u specs.POSIXRlimit) bool { return u.Type == a.Type })
		if at < 0 {
			usual = append(usual, a)
		} else {
			usual[at] = a
		}
	}
	return usual
}
