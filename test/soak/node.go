package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// scene has the directories and cgroups of one run.
type scene struct {
	dir string
	// tree holds the containers' cgroups, all below group.
	tree  cgroup.Hierarchy
	group string
}

func openScene(dir string) (scene, error) {
	s := scene{dir: dir, group: "/berth-soak-" + filepath.Base(dir)}
	tree, err := cgroup.Detect("")
	if err != nil {
		return s, err
	}
	if tree.Hybrid { // in the unified tree a child can be born in its cgroup
		tree, err = cgroup.Detect(filepath.Join(tree.Mount, "unified"))
	}
	s.tree = tree
	return s, err
}

func (s scene) path(elem ...string) string { return filepath.Join(append([]string{s.dir}, elem...)...) }

func (s scene) ledger(step func(string)) *ledger.Ledger {
	return ledger.Open(ledger.Options{Dir: s.path("run"), Events: s.path("log"), Cgroup: s.tree.Mount, Step: step})
}

// gpus is how many GPUs the made-up node has.
const gpus = 16

// inventory is a node of which every nth GPU is cut into seven slices.
func inventory(nth int) gpu.Inventory {
	var inv gpu.Inventory
	for i := range gpus {
		g := gpu.GPU{
			UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i), Index: i, Minor: i,
			PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i), Model: "NVIDIA H100 80GB HBM3", Memory: 80 << 30, NUMA: i * 2 / gpus,
		}
		if i%nth == nth-1 {
			g.MIG = true
			for s := range 7 {
				g.Slices = append(g.Slices, gpu.Slice{
					UUID:  fmt.Sprintf("MIG-%08d-0000-0000-0000-%012d", i, s),
					Index: s, Profile: "1g.10gb", GI: s + 7, Memory: 10 << 30,
				})
			}
		}
		inv.GPUs = append(inv.GPUs, g)
		for j := range i {
			inv.Links = append(inv.Links, gpu.Link{A: j, B: i, NVLinks: 18, PCIe: gpu.PathSYS})
		}
	}
	return inv
}

// everything returns a request of every GPU of the node, and with them of all slices.
func everything() string {
	words := "device="
	for i := range gpus {
		if i > 0 {
			words += ","
		}
		words += fmt.Sprint(i)
	}
	return words
}

// makeDirs makes the scene's directories and the referee's files.
func (s scene) makeDirs() error {
	for _, d := range []string{"referee", "pids"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return err
		}
	}
	return s.tree.Create(s.group)
}
