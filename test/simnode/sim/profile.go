package sim

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// Profile is the blueprint of a simulated server: data only.
type Profile struct {
	Name string
	// Driver and CUDA are the versions at the start; CUDA as NVML counts: 12040 is 12.4.
	Driver string
	CUDA   int
	// Bridges maps the bus of each PCI host bridge to its NUMA node.
	Bridges map[string]int
	GPUs    []GPU
	// Switches are the PCI paths of the NVSwitches.
	Switches []string
	HCAs     []HCA
	// Files is the number of nodes of GPUDirect Storage, Channels that of IMEX.
	Files, Channels int
	// GDRCopy says that its driver is there.
	GDRCopy bool
	// Modules are kernel modules besides NVIDIA's own.
	Modules []string
}

// GPU is one simulated GPU.
type GPU struct {
	Model *Model
	// Path is the way from the host bridge to the function, in short addresses:
	// "15 15:01.0 16:00.0 1b:00.0".
	Path  string
	Minor int
	// Links holds for each NVLink the index of the NVSwitch at its other end.
	Links []int
	// MIG is the layout at the start in the words of ctl's mig: "3g.40gb,1g.10gb",
	// "on" for MIG mode without slices, "" for MIG mode off.
	MIG string
}

// HCA is one simulated RDMA adapter with one port.
type HCA struct {
	Name      string
	Path      string
	Uverbs    int // N of uverbsN and umadN, which isn't always that of the name
	LinkLayer string
	State     string // as in sysfs: "4: ACTIVE"
	Rate      string
	Netdev    string
}

// Model is a product.
type Model struct {
	Name         string
	Architecture int // nvmlDeviceArchitecture_t
	Brand        int // nvmlBrandType_t
	Compute      string
	MemoryMiB    uint64
	PCIDevice    uint16
	PCISubsystem uint32 // device and vendor, as NVML has them
	Multiproc    int
	// Slicings is empty for a model without MIG.
	Slicings []Slicing
}

// Slicing is one GPU instance profile of a model.
type Slicing struct {
	Name      string
	ID        int // that of nvidia-smi mig -lgip
	Kind      int // NVML_GPU_INSTANCE_PROFILE_*
	Slices    int
	Max       int
	Multiproc int
	MemoryMiB uint64
	Engines   [5]int // copy, decode, encode, jpeg, ofa
	Size      int    // memory slices of eight
	Starts    []int  // in the order in which they are tried
}

// uuid is made of the profile's name and the place of the thing, so that it is
// the same in each run and differs between nodes.
func uuid(prefix string, of ...any) string {
	h := sha256.Sum256([]byte(fmt.Sprintln(of...)))
	h[6] = h[6]&0x0f | 0x40
	h[8] = h[8]&0x3f | 0x80
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// UUID returns the UUID of the GPU with the index.
func (p Profile) UUID(index int) string { return uuid("GPU", p.Name, index) }

// SliceUUID returns the UUID of a compute instance; it is the same after the same layout was made
// again.
func (p Profile) SliceUUID(index int, s Slice) string {
	return uuid("MIG", p.Name, index, s.Profile, s.GI, s.CI)
}

// PCI returns the address of the function at the end of a path: "0000:1b:00.0".
func PCI(path string) string {
	return "0000:" + path[strings.LastIndexByte(path, ' ')+1:]
}

// numa returns the node of a path's host bridge.
func (p Profile) numa(path string) int {
	bridge, _, _ := strings.Cut(path, " ")
	return p.Bridges[bridge]
}

// Nodes counts the NUMA nodes.
func (p Profile) Nodes() int {
	n := 0
	for _, node := range p.Bridges {
		n = max(n, node+1)
	}
	return n
}

// NUMA returns the NUMA node of the GPU with the index.
func (p Profile) NUMA(index int) int { return p.numa(p.GPUs[index].Path) }

// Common returns how far apart two functions are: one of NVML's topology levels.
func (p Profile) Common(a, b string) int {
	as, bs := strings.Fields(a), strings.Fields(b)
	n := 0
	for n < len(as) && n < len(bs) && as[n] == bs[n] {
		n++
	}
	beyond := max(len(as), len(bs)) - n // functions below the last common one
	switch {
	case a == b:
		return topologyInternal
	case n == 0 && p.numa(a) != p.numa(b):
		return topologySystem
	case n == 0:
		return topologyNode
	case n == 1:
		return topologyHostBridge
	case beyond <= 2: // the switch's downstream port and the device itself
		return topologySingle
	}
	return topologyMultiple
}

// NVML's nvmlGpuTopologyLevel_t.
const (
	topologyInternal   = 0
	topologySingle     = 10
	topologyMultiple   = 20
	topologyHostBridge = 30
	topologyNode       = 40
	topologySystem     = 50
)

// LookupProfile finds a profile by name.
func LookupProfile(name string) (Profile, error) {
	listed := Profiles()
	all := append(listed, boards("sixteen", 16), boards("sixty-four", 64), boards("no-gpu", 0))
	if i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == name }); i >= 0 {
		return all[i], nil
	}
	var names []string
	for _, p := range listed {
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("unknown profile %q: it is one of %s", name, strings.Join(names, ", "))
}
