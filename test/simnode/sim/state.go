package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/lock"
)

// Dir is the directory of a node's state, inside its own /run.
const Dir = "/run/simnode"

// Node is the state of a running simulated node, as in node.json.
type Node struct {
	ID      string `json:"id"`
	Profile string `json:"profile"`
	Cgroup  string `json:"cgroup"`
	// Driver is the present version.
	Driver string `json:"driver"`
	// DriverRoot and Libraries are the directories of the driver's files.
	DriverRoot string `json:"driver_root"`
	Libraries  string `json:"libraries"`
	Programs   string `json:"programs"`
	// Libraries32 is the directory of the libraries of 32 bits, "" if there are none.
	Libraries32 string `json:"libraries32,omitempty"`
	// NVIDIA: the files are NVIDIA's own, but for NVML and nvidia-smi.
	NVIDIA bool `json:"nvidia,omitempty"`
	// Bare: the accelerators' nodes don't exist. UVM: nvidia-uvm is loaded.
	Bare   bool           `json:"bare,omitempty"`
	UVM    bool           `json:"uvm"`
	Majors map[string]int `json:"majors"`
	CPUs   []string       `json:"cpus"` // of each NUMA node, list format
	GPUs   []GPUState     `json:"gpus"`
	// Hang and Fail map an NVML function to the GPUs ("*": any) it hangs or fails on.
	Hang map[string][]string `json:"hang,omitempty"`
	Fail map[string]Failure  `json:"fail,omitempty"`
}

// GPUState is the variable state of a GPU.
type GPUState struct {
	Lost bool `json:"lost,omitempty"`
	// Dropped: its PCI configuration space reads as ones.
	Dropped bool `json:"dropped,omitempty"`
	// Replaced counts the replacements of the GPU by another one.
	Replaced  int        `json:"replaced,omitempty"`
	MIG       bool       `json:"mig,omitempty"`
	Instances []Instance `json:"instances,omitempty"`
	Processes []Process  `json:"processes,omitempty"`
}

// Process is a process that holds memory of a GPU.
type Process struct {
	PID int    `json:"pid"`
	MiB uint64 `json:"mib"`
}

// Failure is an NVML error code that a function gives for some GPUs.
type Failure struct {
	Code int      `json:"code"`
	GPUs []string `json:"gpus"`
}

// Current reads the state of the node that the caller is in.
func Current() (Node, error) {
	var n Node
	b, err := os.ReadFile(filepath.Join(Dir, "node.json"))
	if errors.Is(err, os.ErrNotExist) {
		return n, errors.New("not inside a simulated node")
	}
	if err != nil {
		return n, fmt.Errorf("read node's state: %w", err)
	}
	if err := json.Unmarshal(b, &n); err != nil {
		return n, fmt.Errorf("parse node's state: %w", err)
	}
	return n, nil
}

// UUID returns the present UUID of the GPU with the index.
func (n Node) UUID(i int) string {
	if replaced := n.GPUs[i].Replaced; replaced > 0 {
		return uuid("GPU", n.Profile, i, replaced)
	}
	return n.Blueprint().UUID(i)
}

// Blueprint returns the node's profile.
func (n Node) Blueprint() Profile {
	p, err := LookupProfile(n.Profile)
	if err != nil {
		panic(err) // node.json is written by this package alone
	}
	return p
}

// write saves node.json and NVML's state, each atomically.
func (n Node) write() error {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("encode node's state: %w", err)
	}
	if err := replace(filepath.Join(Dir, "nvml.state"), n.nvmlState()); err != nil {
		return err
	}
	return replace(filepath.Join(Dir, "node.json"), string(b)+"\n")
}

// update changes the state of the node that the caller is in, and then its trees, under its lock.
// NVML's state is the first to change: a discovery meanwhile, which reads /proc before it asks NVML,
// sees later that /proc has changed since. The real driver changes both in one ioctl.
func update(change func(*Node) error) (err error) {
	held, err := lock.Create(context.Background(), filepath.Join(Dir, "lock"), 0o600, lock.Exclusive)
	if err != nil {
		return fmt.Errorf("lock node: %w", err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	n, err := Current()
	if err != nil {
		return err
	}
	was := n.clone()
	if err := change(&n); err != nil {
		return err
	}
	if err := n.write(); err != nil {
		return err
	}
	return n.apply(was)
}

func replace(path, content string) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, []byte(content), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", temp, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}

// nvmlState is what libnvidia-ml.so.1 reads: one "key value" a line, sorted.
func (n Node) nvmlState() string {
	p := n.Blueprint()
	var lines []string
	set := func(key string, value any) { lines = append(lines, fmt.Sprintf("%s %v\n", key, value)) }
	set("system.driver", n.Driver)
	set("system.nvml", fmt.Sprintf("%d.%s", p.CUDA/1000, n.Driver))
	set("system.cuda", p.CUDA)
	set("system.gpus", len(p.GPUs))
	set("system.simulated", n.ID)
	for fn, gpus := range n.Hang {
		set("hang."+fn, strings.Join(gpus, ","))
	}
	for fn, f := range n.Fail {
		set("fail."+fn, fmt.Sprintf("%d %s", f.Code, strings.Join(f.GPUs, ",")))
	}
	for i := range p.GPUs {
		n.gpuState(p, i, func(key string, value any) { set(fmt.Sprintf("g%d.%s", i, key), value) })
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (n Node) gpuState(p Profile, i int, set func(key string, value any)) {
	g, now := p.GPUs[i], n.GPUs[i]
	m := g.Model
	set("uuid", n.UUID(i))
	set("name", m.Name)
	set("minor", g.Minor)
	set("bus", PCI(g.Path))
	set("pciid", uint32(m.PCIDevice)<<16|vendorNVIDIA)
	set("pcisub", m.PCISubsystem)
	set("arch", m.Architecture)
	set("brand", m.Brand)
	set("cc", m.Compute)
	set("mem", m.MemoryMiB<<20)
	set("sms", m.Multiproc)
	set("lost", bit(now.Lost))
	set("migcapable", bit(len(m.Slicings) > 0))
	set("mig", bit(now.MIG))
	set("numa", p.NUMA(i))
	set("cpus", n.CPUs[p.NUMA(i)])
	set("procs", len(now.Processes))
	for k, proc := range now.Processes {
		set(fmt.Sprintf("p%d", k), fmt.Sprintf("%d %d", proc.PID, proc.MiB<<20))
	}
	var levels []string
	for _, other := range p.GPUs {
		levels = append(levels, fmt.Sprint(p.Common(g.Path, other.Path)))
	}
	set("topo", strings.Join(levels, " "))
	set("links", len(g.Links))
	for k, sw := range g.Links {
		set(fmt.Sprintf("l%d", k), PCI(p.Switches[sw]))
	}
	set("profiles", len(m.Slicings))
	for k, s := range m.Slicings {
		set(fmt.Sprintf("f%d", k), s.nvml())
	}
	n.migState(p, i, set)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
