package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// Settings are what people say of a container in docker's words. Each is checked
// before anything is made.
type Settings struct {
	// Entrypoint replaces the image's, and its command with it; nil leaves both, and
	// one without words leaves Options.Command alone.
	Entrypoint []string
	// Groups are supplementary ones, names of the image or numbers.
	Groups []string
	// Hostname and Domainname; "" means the task's name, and none.
	Hostname, Domainname string
	// Hosts are further lines for the task's /etc/hosts, "ADDRESS\tNAME".
	Hosts []string
	// Resolver is what the task's /etc/resolv.conf says in place of the host's.
	Resolver Resolver
	// Labels are for people and tools; they go into the task's record and nowhere else.
	// Annotations go into the spec.
	Labels, Annotations map[string]string
	// Mounts are made in the container beside Volumes.
	Mounts []specs.Mount
	// IPC, UTS and CgroupNS are "host", or "private" or "" for one of the task's own.
	IPC, UTS, CgroupNS string
	// Sysctls are kernel parameters of the task's own namespaces.
	Sysctls map[string]string
	// Init has a small program be the task's first process, InitProgram on the host:
	// it passes on signals, and reaps what the command leaves behind.
	Init        bool
	InitProgram string
	// StopSignal is a signal's name or number, "" the image's or SIGTERM, and
	// StopTimeout how long the task then has; zero means ten seconds, less than zero
	// for ever.
	StopSignal  string
	StopTimeout time.Duration
	// CIDFile gets the task's id. It must not exist.
	CIDFile string

	Security
	Resources
}

// Resources are limits beside those of Options. Zero means none.
type Resources struct {
	Ulimits []specs.POSIXRlimit
	// MemorySwap is memory and swap together; less than zero is as much as there is.
	MemorySwap, MemoryReservation int64
	Pids                          int64
	CPUShares                     uint64
	MemoryNodes                   string // NUMA nodes in list format
	OOMScoreAdj                   *int
}

// Resolver is how names are looked up.
type Resolver struct{ Servers, Search, Options []string }

// checkSettings fails for what can't be, whatever the image is.
func (o Options) checkSettings(h *host) error {
	return first(
		o.checkNames, o.checkNamespaces, o.checkSysctls, o.checkAnnotations, o.checkStop, o.checkCIDFile,
		func() error { return o.checkUlimits(h) },
		func() error { return o.checkResources(h) },
		o.checkCPUs,
		func() error { return o.checkSecurity(h) },
	)
}

// first returns the first error, and calls nothing after it.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) checkNames() error {
	for flag, name := range map[string]string{"--hostname": o.Hostname, "--domainname": o.Domainname} {
		if name != "" && !validHostname(name) {
			return fmt.Errorf("%s %q: only letters, digits, \".\", \"_\" and \"-\" are allowed, at most 63, beginning with a letter or digit", flag, name)
		}
	}
	if r := o.Resolver; o.Network == "none" && len(r.Servers)+len(r.Search)+len(r.Options) > 0 {
		return errors.New("--dns: with --network none there is no server to ask")
	}
	return nil
}

func validHostname(s string) bool { return validName(s) && !strings.Contains(s, "..") }

func (o Options) checkNamespaces() error {
	for flag, kind := range map[string]string{"--ipc": o.IPC, "--uts": o.UTS, "--cgroupns": o.CgroupNS} {
		if kind != "" && kind != "private" && kind != "host" {
			return fmt.Errorf("%s %q is not known%s: there are private and host", flag, kind, spell.Meant(kind, "private", "host"))
		}
	}
	switch {
	case o.UTS == "host" && o.Hostname+o.Domainname != "":
		return errors.New("--uts host: the host's name can't be changed; leave out --hostname and --domainname, or --uts")
	case o.IPC == "host" && o.Shm > 0:
		return errors.New("--ipc host: the task has the host's /dev/shm, whose size is its own; leave out --shm-size or --ipc")
	}
	return nil
}

func (o Options) checkSysctls() error {
	for name := range o.Sysctls {
		if err := o.checkSysctl(name); err != nil {
			return fmt.Errorf("--sysctl %s: %w", name, err)
		}
	}
	return nil
}

// checkSysctl: a parameter that isn't of a namespace is the whole machine's.
func (o Options) checkSysctl(name string) error {
	ipc := []string{"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"}
	switch {
	case slices.Contains(ipc, name) || strings.HasPrefix(name, "fs.mqueue."):
		if o.IPC == "host" {
			return errors.New("it is the host's with --ipc host; set it on the host")
		}
	case strings.HasPrefix(name, "net."):
		if o.Network == "host" {
			return errors.New("the task shares the host's network; set it on the host, or take --network none")
		}
	case name == "kernel.hostname" || name == "kernel.domainname":
		return errors.New("--hostname and --domainname set it")
	default:
		return errors.New("it is the whole machine's; set it on the host")
	}
	if strings.Contains(name, "/") || strings.Contains(name, "..") {
		return errors.New("not the name of a parameter")
	}
	return nil
}

// checkAnnotations: some are instructions to the runtime or to berth.
func (o Options) checkAnnotations() error {
	for name := range o.Annotations {
		switch {
		case strings.HasPrefix(name, "berth."):
			return fmt.Errorf("--annotation %s: it is for engines that have no other word; here --gpus asks for devices", name)
		case strings.HasPrefix(name, "dev.berth."), strings.HasPrefix(name, "run.oci."), strings.HasPrefix(name, "org.systemd."):
			return fmt.Errorf("--annotation %s: berth and the runtime speak to each other with it; take another name", name)
		}
	}
	return nil
}

func (o Options) checkStop() error {
	if o.StopSignal == "" {
		return nil
	}
	_, err := ParseSignal(o.StopSignal)
	return err
}

// ParseSignal reads a signal's name, with or without SIG, or its number.
func ParseSignal(s string) (syscall.Signal, error) {
	const rtMin, rtMax = 34, 64 // as the C library has it
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= rtMax {
		return syscall.Signal(n), nil
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	for base, from := range map[string]int{"SIGRTMIN": rtMin, "SIGRTMAX": rtMax} {
		rest, ok := strings.CutPrefix(name, base)
		n, err := strconv.Atoi("0" + strings.TrimLeft(rest, "+-"))
		if strings.HasPrefix(rest, "-") {
			n = -n
		}
		if ok && err == nil && from+n >= rtMin && from+n <= rtMax {
			return syscall.Signal(from + n), nil
		}
	}
	return 0, fmt.Errorf("signal %q is not known%s: names such as TERM or SIGINT and numbers are", s, spell.Meant(strings.TrimPrefix(name, "SIG"), signalNames()...))
}

func signalNames() (names []string) {
	for n := range 32 {
		if name := unix.SignalName(syscall.Signal(n)); name != "" {
			names = append(names, strings.TrimPrefix(name, "SIG"))
		}
	}
	return names
}

func (o Options) checkCIDFile() error {
	if o.CIDFile == "" {
		return nil
	}
	if _, err := os.Lstat(o.CIDFile); err == nil {
		return fmt.Errorf("--cidfile %s: it exists, and another task may count on it; remove it or name another", o.CIDFile)
	}
	return nil
}

// writeCID tells the task's id to who waits for the file.
func (t *task) writeCID() error {
	if t.o.CIDFile == "" {
		return nil
	}
	f, err := os.OpenFile(t.o.CIDFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("--cidfile: %w", err)
	}
	_, err = f.WriteString(t.place.id)
	return errors.Join(err, f.Close())
}

func (o Options) checkResources(h *host) error {
	switch {
	case o.MemorySwap > 0 && o.Memory == 0:
		return errors.New("--memory-swap is memory and swap together; say --memory too")
	case o.MemorySwap > 0 && o.MemorySwap < o.Memory:
		return errors.New("--memory-swap is memory and swap together, and can't be less than --memory")
	case o.Memory > 0 && o.MemoryReservation > o.Memory:
		return errors.New("--memory-reservation can't be more than --memory")
	case o.CPUShares == 1 || o.CPUShares > 262144:
		return fmt.Errorf("--cpu-shares %d: the kernel takes 2 to 262144", o.CPUShares)
	}
	for _, need := range []struct {
		asked            bool
		controller, what string
	}{
		{o.MemoryReservation != 0 || o.MemorySwap != 0, "memory", "limit memory"},
		{o.Pids > 0, "pids", "limit processes"},
		{o.CPUShares != 0, "cpu", "share CPUs"},
		{o.MemoryNodes != "", "cpuset", "choose NUMA nodes"},
	} {
		if need.asked {
			if err := h.needs(need.controller, need.what); err != nil {
				return err
			}
		}
	}
	return first(o.checkNodes, func() error { return o.checkSwap(h) }, func() error { return o.checkOOM(h) })
}

// checkSwap: on v1 the kernel counts swap only where it was told to at boot.
func (o Options) checkSwap(h *host) error {
	if o.MemorySwap == 0 || h.tree.Version == cgroup.V2 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(or(o.Cgroup, "/sys/fs/cgroup"), "memory/memory.memsw.limit_in_bytes")); err != nil {
		return errors.New("--memory-swap: this kernel doesn't count swap; boot it with swapaccount=1")
	}
	return nil
}

func (o Options) checkOOM(h *host) error {
	if o.OOMScoreAdj == nil {
		return nil
	}
	adj := *o.OOMScoreAdj
	if adj < -1000 || adj > 1000 {
		return fmt.Errorf("--oom-score-adj %d: the kernel takes -1000 to 1000", adj)
	}
	own, err := smallfile.Int("/proc/self/oom_score_adj")
	if err == nil && adj < own && h.give.Capabilities&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		return fmt.Errorf("--oom-score-adj %d: this root may not go below its own, %d: CAP_SYS_RESOURCE is missing", adj, own)
	}
	return nil
}

func (o Options) checkNodes() error {
	if o.MemoryNodes == "" {
		return nil
	}
	wanted, err := parseCPUs(o.MemoryNodes)
	if err != nil {
		return fmt.Errorf("--cpuset-mems %q is not a list of NUMA nodes, such as 0 or 0-1", o.MemoryNodes)
	}
	text, err := smallfile.String("/sys/devices/system/node/online")
	if err != nil {
		text = "0" // a machine that knows no nodes has one
	}
	online, err := parseCPUs(text)
	if err != nil {
		return nil // the kernel tells
	}
	for _, n := range wanted {
		if !slices.Contains(online, n) {
			return fmt.Errorf("--cpuset-mems %s: there is no NUMA node %d; the machine has %s", o.MemoryNodes, n, text)
		}
	}
	return nil
}

// checkCPUs: those near a device are a preference, but those that were asked for by
// number have to be there.
func (o Options) checkCPUs() error {
	if o.CPUs == "" {
		return nil
	}
	wanted, err := parseCPUs(o.CPUs)
	if err != nil {
		return err
	}
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		return fmt.Errorf("read own CPUs: %w", err)
	}
	switch usable := intersect(wanted, mine); {
	case len(usable) == 0:
		return fmt.Errorf("none of the CPUs %s can be used here", o.CPUs)
	case len(usable) < len(wanted):
		return fmt.Errorf("of the CPUs %s only %s can be used here", o.CPUs, formatCPUs(usable))
	}
	return nil
}
