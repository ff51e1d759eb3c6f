package doctor

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/gpu/topology"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// neighbours are a GPU and another GPU or NIC below one PCIe switch. They exchange data
// without the CPU unless a bridge between them redirects it.
type neighbours struct{ gpu, other sysfs.Device }

// readNeighbours lists all pairs of neighbours.
func (e *examination) readNeighbours() (pairs []neighbours, err error) {
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
	return pairNeighbours(gpus, others), nil
}

// pairNeighbours pairs devices below one switch. others begins with gpus.
func pairNeighbours(gpus, others []sysfs.Device) (pairs []neighbours) {
	for i, g := range gpus {
		for _, o := range others[i+1:] {
			if sharedSteps(g, o) > 1 { // more than the host bridge
				pairs = append(pairs, neighbours{g, o})
			}
		}
	}
	return pairs
}

// sharedSteps returns how many steps two routes share, from the host bridge down.
func sharedSteps(a, b sysfs.Device) (n int) {
	for n < min(len(a.Route), len(b.Route)) && a.Route[n] == b.Route[n] {
		n++
	}
	return n
}

// bridgesBetween returns the bridges between neighbours, without the one that both are
// below.
func bridgesBetween(pairs []neighbours) (bridges []string) {
	for _, p := range pairs {
		n := sharedSteps(p.gpu, p.other)
		for _, d := range []sysfs.Device{p.gpu, p.other} {
			for _, bridge := range d.Route[n : len(d.Route)-1] {
				if !slices.Contains(bridges, bridge) {
					bridges = append(bridges, bridge)
				}
			}
		}
	}
	return bridges
}

func (e *examination) checkACS(r *report) error {
	pairs, err := e.readNeighbours()
	if err != nil || len(pairs) == 0 {
		return err
	}
	bridges := bridgesBetween(pairs)
	controls := map[string]uint16{}
	for _, bridge := range bridges {
		const size = 4096
		space, err := smallfile.Read(e.host.SysPath("bus/pci/devices", bridge, "config"), size)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		control, known := parseACS(space)
		if !known && e.User != "" {
			return errRootOnly
		}
		controls[bridge] = control
	}
	decideACS(r, bridges, controls)
	return nil
}

// acsRedirects are the bits of ACS control with which a bridge forwards traffic between
// neighbours to the CPU: request redirect, completion redirect, upstream forwarding
// (linux/pci_regs.h: PCI_ACS_RR, PCI_ACS_CR, PCI_ACS_UF).
const acsRedirects = 0x04 | 0x08 | 0x10

// decideACS reports bridges that redirect by access control. controls are the ACS controls
// of the bridges.
func decideACS(r *report, bridges []string, controls map[string]uint16) {
	var redirecting []string
	for _, bridge := range bridges {
		if controls[bridge]&acsRedirects != 0 {
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) > 0 {
		r.warn("for b in "+strings.Join(redirecting, " ")+"; do setpci -s $b ECAP_ACS+6.w=0; done"+
			", or off in the firmware; virtual machines with passed-through GPUs need it on",
			"access control (ACS) redirects traffic between GPUs and NICs below a switch to the CPU: %s", listFirst(redirecting))
		return
	}
	r.ok("no access control (ACS) on the %s between GPUs and their neighbours", output.FormatCount(len(bridges), "bridge"))
}

// parseACS reads the ACS control of a bridge from its configuration space: 0 if it has
// none. known is false if space has only the 64 bytes that users other than root can read.
func parseACS(space []byte) (control uint16, known bool) {
	const first, size, id = 0x100, 4096, 0x0d // PCI_EXT_CAP_ID_ACS
	if len(space) <= first {
		return 0, len(space) > 64
	}
	for at, n := first, 0; at >= first && at+8 <= len(space) && n < size/8; n++ {
		header := binary.LittleEndian.Uint32(space[at:])
		if header&0xffff == id {
			return binary.LittleEndian.Uint16(space[at+6:]), true
		}
		at = int(header >> 20)
	}
	return 0, true
}

// peerFacts are how NICs reach the memory of GPUs.
type peerFacts struct {
	// nicBesideGPU means that a NIC is below one switch with a GPU.
	nicBesideGPU bool
	// module is the loaded module for GPUDirect RDMA, "" if none is loaded.
	module string
	// openModule means that NVIDIA's open kernel module, which has dma-buf, is loaded.
	openModule bool
}

func (e *examination) checkPeerMemory(r *report) error {
	pairs, err := e.readNeighbours()
	if err != nil {
		return err
	}
	nics, err := sysfs.NICs(e.host)
	if err != nil {
		return err
	}
	var f peerFacts
	f.nicBesideGPU = slices.ContainsFunc(pairs, func(p neighbours) bool {
		return slices.ContainsFunc(nics, func(n sysfs.NIC) bool { return n.Device.Address == p.other.Address && n.PCI != "" })
	})
	for _, name := range []string{"nv_peer_mem", "nvidia_peermem"} {
		if exists(e.host.SysPath("module", name)) {
			f.module = name
		}
	}
	version, err := smallfile.String(e.host.ProcPath("driver/nvidia/version"))
	f.openModule = err == nil && strings.Contains(version, "Open Kernel Module")
	decidePeerMemory(r, f)
	return nil
}

func decidePeerMemory(r *report, f peerFacts) {
	switch {
	case !f.nicBesideGPU:
	case f.module != "":
		r.ok("NICs reach the GPUs' memory by %s", f.module)
	case f.openModule:
		r.ok("NICs reach the GPUs' memory by dma-buf, of the open kernel module")
	default:
		r.warn("modprobe nvidia-peermem", "no NIC reaches a GPU's memory (GPUDirect RDMA): nvidia_peermem isn't loaded, and dma-buf needs the open kernel module")
	}
}

func (e *examination) checkSharedMemory(r *report) error {
	shm, err := e.readFileSystem("/dev/shm")
	if err == nil {
		decideSharedMemory(r, e.Config.Policy.Shm, shm)
	}
	return err
}

// decideSharedMemory reports a /dev/shm that is too small for ranks that exchange data
// through it. size is policy.shm, shm is the machine's own /dev/shm.
func decideSharedMemory(r *report, size string, shm fileSystem) {
	const little = 1 << 30
	if n, err := strconv.ParseInt(size, 10, 62); size == "engine" || err == nil && n < little {
		given := "the engine's default, 64 MiB"
		if size != "engine" {
			given = size + " bytes"
		}
		r.warn(`set policy.shm = "50%" in `+r.configPath, "/dev/shm of containers with GPUs is %s: NCCL ends with \"no space left on device\"", given)
	}
	if total := shm.Blocks * uint64(shm.Bsize); total < little { //nolint:gosec // a block's size
		r.warn("mount -o remount,size=50% "+shm.mount, "/dev/shm of the machine, which tasks with its ipc namespace use, has %d MiB", total/mib)
	}
	r.okUnlessReported("containers with GPUs have %s of memory as /dev/shm", cmp.Or(size, "50%"))
}

// checkLockedMemory reports a limit of locked memory: each buffer that a NIC reads or
// writes is locked.
func (e *examination) checkLockedMemory(r *report) error {
	if nics, err := sysfs.NICs(e.host); err != nil || len(nics) == 0 {
		return err
	}
	if e.User != "" {
		return errRootOnly
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read the limit of locked memory: %w", err)
	}
	decideLockedMemory(r, process.MayLiftMemlock(e.host.ProcPath("")), limit.Max)
	return nil
}

func decideLockedMemory(r *report, mayLift bool, limit uint64) {
	if mayLift {
		r.ok("tasks may lock all memory")
		return
	}
	r.warn("ulimit -l unlimited where berth is called (LimitMEMLOCK=infinity in a unit), or give it CAP_SYS_RESOURCE",
		"tasks may lock %d KiB of memory, which this process may not raise: RDMA registers gigabytes", limit/1024)
}

// checkMemoryPolicy reports a policy by which engines' seccomp filters refuse the calls
// that NCCL allocates host memory with.
func (e *examination) checkMemoryPolicy(r *report) error {
	if p := e.Config.Policy.MemoryPolicy; p != nil && !*p {
		r.warn("set policy.memory_policy = true in "+e.ConfigPath, "engines' filters refuse mbind and set_mempolicy in containers with GPUs: NCCL allocates no host memory near a GPU")
		return nil
	}
	r.ok("containers with GPUs may set NUMA memory policy")
	return nil
}

// ncclFacts are the files that the admin gives NCCL.
type ncclFacts struct {
	conf, topology string // of the policy
	// filesErr is why containers can't get them.
	filesErr error
	// guest means that the hypervisor provides a topology file at cdi.NCCLTopology.
	guest bool
	// topologyErr is the defect for which NCCL would refuse the topology file: that of the
	// policy, or else the hypervisor's.
	topologyErr error
}

func (e *examination) checkNCCLFiles(r *report) error {
	f := ncclFacts{conf: e.Config.Policy.NCCLConf, topology: e.Config.Policy.NCCLTopology, guest: exists(cdi.NCCLTopology)}
	for _, name := range []string{f.conf, f.topology} {
		if name != "" && f.filesErr == nil {
			_, f.filesErr = cdi.ReadNCCLFile(name)
		}
	}
	_, f.topologyErr = topology.Read(cmp.Or(f.topology, cdi.NCCLTopology))
	decideNCCLFiles(r, f)
	return nil
}

// decideNCCLFiles reports files that NCCL can't read, and a topology that a virtual
// machine's hypervisor offers and no container gets.
func decideNCCLFiles(r *report, f ncclFacts) {
	given := slices.DeleteFunc([]string{f.conf, f.topology}, func(name string) bool { return name == "" })
	switch {
	case len(given) == 0 && !f.guest:
		return
	case f.filesErr != nil:
		r.fail("put it there, or remove policy.nccl_conf and policy.nccl_topology from "+r.configPath, "no container gets a GPU: %v", f.filesErr)
	case f.topology != "" && f.topologyErr != nil:
		r.fail("correct it (cp "+f.topology+" first), or policy.nccl_topology = \"\" in "+r.configPath, "%v; NCCL ends in every container with a GPU", f.topologyErr)
	case f.topology == "" && f.guest && f.topologyErr != nil:
		r.warn("have the hypervisor's host write it again", "%v; no container gets it", f.topologyErr)
	case f.topology == "" && f.guest:
		r.warn(`set policy.nccl_topology = "`+cdi.NCCLTopology+`" in `+r.configPath, "this virtual machine has a topology file of the real machine, %s, and no container gets it", cdi.NCCLTopology)
	}
	r.okUnlessReported("containers with GPUs get %s", strings.Join(given, " and "))
}
