package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/gpu/topology"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// neighbours are a GPU and another GPU or NIC below one PCIe switch: data goes from one
// to the other without passing the CPU, if nothing sends it there.
type neighbours struct{ gpu, other sysfs.Device }

// nearest lists all pairs of neighbours.
func (e *exam) nearest() (pairs []neighbours, err error) {
	addresses, err := driver.Addresses(e.host)
	if err != nil {
		return nil, err
	}
	var gpus, others []sysfs.Device
	for _, a := range addresses {
		d, err := sysfs.PCI(e.host, strings.ToLower(a))
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, d)
	}
	nics, err := sysfs.NICs(e.host)
	if err != nil {
		return nil, err
	}
	others = slices.Clone(gpus)
	for _, n := range nics {
		others = append(others, n.Device)
	}
	for i, g := range gpus {
		for _, o := range others[i+1:] {
			if common(g, o) > 1 { // more than the host bridge
				pairs = append(pairs, neighbours{g, o})
			}
		}
	}
	return pairs, nil
}

// common is how many steps two devices have in common, from the host bridge down.
func common(a, b sysfs.Device) (n int) {
	for n < min(len(a.Route), len(b.Route)) && a.Route[n] == b.Route[n] {
		n++
	}
	return n
}

// acs: access control on the bridges between neighbours has their data make a detour by
// the CPU, or ends it there.
func (e *exam) acs(r *result) error {
	pairs, err := e.nearest()
	if err != nil || len(pairs) == 0 {
		return err
	}
	var between, redirecting []string
	for _, p := range pairs {
		n := common(p.gpu, p.other)
		for _, d := range []sysfs.Device{p.gpu, p.other} {
			for _, bridge := range d.Route[n : len(d.Route)-1] {
				if !slices.Contains(between, bridge) {
					between = append(between, bridge)
				}
			}
		}
	}
	for _, bridge := range between {
		control, known, err := e.accessControl(bridge)
		switch {
		case err != nil:
			return err
		case !known && e.User != "":
			r.hide()
			return nil
		case control&redirects != 0:
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) > 0 {
		r.warn("for b in "+strings.Join(redirecting, " ")+"; do setpci -s $b ECAP_ACS+6.w=0; done"+
			", or off in the firmware; virtual machines that are handed GPUs need it on",
			"access control (ACS) sends by the CPU what GPUs and NICs below a switch tell each other: %s", listed(redirecting))
		return nil
	}
	r.ok("no access control (ACS) on the %s between GPUs and their neighbours", count(len(between), "bridge"))
	return nil
}

// redirects are the bits of ACS control by which a bridge sends what is meant for a
// neighbour upwards: request and completion redirect, and upstream forwarding. Source:
// linux/pci_regs.h, PCI_ACS_RR, PCI_ACS_CR, PCI_ACS_UF.
const redirects = 0x04 | 0x08 | 0x10

// accessControl reads the ACS control of a bridge: 0 if it has none. Of the configuration
// others than root see 64 bytes, which don't tell.
func (e *exam) accessControl(bridge string) (control uint16, known bool, err error) {
	const first, size, id = 0x100, 4096, 0x0d // PCI_EXT_CAP_ID_ACS
	space, err := smallfile.Read(e.host.SysPath("bus/pci/devices", bridge, "config"), size)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if len(space) <= first {
		return 0, len(space) > 64, nil
	}
	for at, n := first, 0; at >= first && at+8 <= len(space) && n < size/8; n++ {
		header := binary.LittleEndian.Uint32(space[at:])
		if header&0xffff == id {
			return binary.LittleEndian.Uint16(space[at+6:]), true, nil
		}
		at = int(header >> 20)
	}
	return 0, true, nil
}

// peermem: without one of two ways NICs reach GPUs' memory by the CPU's.
func (e *exam) peermem(r *result) error {
	pairs, err := e.nearest()
	if err != nil {
		return err
	}
	nics, err := sysfs.NICs(e.host)
	if err != nil {
		return err
	}
	near := slices.ContainsFunc(pairs, func(p neighbours) bool {
		return slices.ContainsFunc(nics, func(n sysfs.NIC) bool { return n.Device.Address == p.other.Address && n.PCI != "" })
	})
	if !near {
		return nil
	}
	for _, name := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if there(e.host.SysPath("module", name)) {
			r.ok("NICs reach the GPUs' memory by %s", name)
			return nil
		}
	}
	version, err := smallfile.String(e.host.ProcPath("driver/nvidia/version"))
	if err == nil && strings.Contains(version, "Open Kernel Module") {
		r.ok("NICs reach the GPUs' memory by dma-buf, of the open kernel module")
		return nil
	}
	r.warn("modprobe nvidia-peermem", "no NIC reaches a GPU's memory (GPUDirect RDMA): nvidia_peermem isn't loaded, and dma-buf needs the open kernel module")
	return nil
}

// shm: ranks on one machine exchange data by shared memory, and 64 MiB is too little.
func (e *exam) shm(r *result) error {
	before := len(r.findings)
	const little = 1 << 30
	size := e.Config.Policy.Shm
	if n, err := strconv.ParseInt(size, 10, 62); size == "engine" || err == nil && n < little {
		given := "what the engine gives everybody, 64 MiB"
		if size != "engine" {
			given = size + " bytes"
		}
		r.warn(`set policy.shm = "50%" in `+e.ConfigPath, "/dev/shm of containers with GPUs is %s: NCCL ends with \"no space left on device\"", given)
	}
	_, st, err := statfs("/dev/shm")
	if err != nil {
		return err
	}
	if total := st.Blocks * uint64(st.Bsize); total < little { //nolint:gosec // a block's size
		r.warn("mount -o remount,size=50% "+e.mountOf("/dev/shm"), "/dev/shm of the machine, which tasks with its ipc namespace use, has %d MiB", total/mib)
	}
	r.fine(before, "containers with GPUs have %s of memory as /dev/shm", or(size, "50%"))
	return nil
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// memlock: each buffer that a NIC reads or writes is locked.
func (e *exam) memlock(r *result) error {
	if nics, err := sysfs.NICs(e.host); err != nil || len(nics) == 0 {
		return err
	}
	if e.User != "" {
		r.hide()
		return nil
	}
	if mayLift(e.host.ProcPath("self/status")) {
		r.ok("tasks may lock all memory")
		return nil
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read the limit of locked memory: %w", err)
	}
	r.warn("ulimit -l unlimited where berth is called (LimitMEMLOCK=infinity in a unit), or give it CAP_SYS_RESOURCE",
		"tasks may lock %d KiB of memory, which this process may not raise: RDMA registers gigabytes", limit.Max/1024)
	return nil
}

// memoryPolicy: engines' filters refuse what NCCL allocates host memory with.
func (e *exam) memoryPolicy(r *result) error {
	if p := e.Config.Policy.MemoryPolicy; p != nil && !*p {
		r.warn("set policy.memory_policy = true in "+e.ConfigPath, "engines' filters refuse mbind and set_mempolicy in containers with GPUs: NCCL allocates no host memory near a GPU")
		return nil
	}
	r.ok("containers with GPUs may set NUMA memory policy")
	return nil
}

// ncclFiles: what the admin gives NCCL can be read by it, and in a virtual machine there
// is something to give.
func (e *exam) ncclFiles(r *result) error {
	p := e.Config.Policy
	if p.NCCLConf == "" && p.NCCLTopology == "" && !there(cdi.NCCLTopology) {
		return nil
	}
	before := len(r.findings)
	if _, err := cdi.NCCLFiles(p.NCCLConf, p.NCCLTopology); err != nil {
		r.fail("put it there, or take policy.nccl_conf and policy.nccl_topology out of "+e.ConfigPath, "no container gets a GPU: %v", err)
		return nil
	}
	file := or(p.NCCLTopology, cdi.NCCLTopology)
	_, err := topology.Read(file)
	switch {
	case p.NCCLTopology == "" && !there(file):
	case err != nil && p.NCCLTopology == "":
		r.warn("have the hypervisor's host write it anew", "%v; no container gets it", err)
	case err != nil:
		r.fail("correct it (cp "+file+" first), or policy.nccl_topology = \"\" in "+e.ConfigPath, "%v; NCCL ends in every container with a GPU", err)
	case p.NCCLTopology == "":
		r.warn(`set policy.nccl_topology = "`+file+`" in `+e.ConfigPath, "this virtual machine has a picture of the real one, %s, and no container gets it", file)
	}
	var files []string
	for _, f := range []string{p.NCCLConf, p.NCCLTopology} {
		if f != "" {
			files = append(files, f)
		}
	}
	r.fine(before, "containers with GPUs get %s", strings.Join(files, " and "))
	return nil
}
