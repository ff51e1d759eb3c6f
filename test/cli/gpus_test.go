package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/simnode/sim"
)

// TestProfiles: berth shows the devices of each kind of node.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, p := range sim.Profiles() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, p.Name, options{})
			got := n.gpus() // discovers by itself
			if got.Hostname != "simulated-"+p.Name || got.NVSwitches != len(p.Switches) || got.Driver.Version != p.Driver {
				t.Errorf("node is %q with %d switches and driver %s", got.Hostname, got.NVSwitches, got.Driver.Version)
			}
			var hcas, nics []string
			for _, h := range p.HCAs {
				hcas = append(hcas, h.Name)
			}
			for _, nic := range got.NICs {
				nics = append(nics, nic.Name)
			}
			slices.Sort(hcas)
			slices.Sort(nics)
			if diff := cmp.Diff(hcas, nics); diff != "" {
				t.Errorf("HCAs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(blueprint(p), shown(got)); diff != "" {
				t.Errorf("GPUs and slices (-want +got):\n%s", diff)
			}
			n.everyDevice(got)
			n.checkClean(t)
		})
	}
}

// gpu is one GPU of a profile, in the fields that berth shows.
type gpu struct {
	UUID, PCI, Model string
	Minor, NUMA      int
	Memory           uint64
	Slices           []string // profiles, sorted
	State            string
}

func blueprint(p sim.Profile) (all []gpu) {
	for i, g := range p.GPUs {
		want := gpu{
			UUID: p.UUID(i), PCI: sim.PCI(g.Path), Model: g.Model.Name, Minor: g.Minor, NUMA: p.NUMA(i),
			Memory: g.Model.MemoryMiB << 20, State: "free",
		}
		if g.MIG != "" {
			want.State = "sliced"
		}
		for _, word := range strings.Split(g.MIG, ",") {
			want.Slices = append(want.Slices, computeInstances(word)...)
		}
		slices.Sort(want.Slices)
		all = append(all, want)
	}
	return all
}

// computeInstances of one word of a layout: "3g.40gb:1c:2c" are two.
func computeInstances(word string) (profiles []string) {
	if word == "" || word == "on" || word == "off" {
		return nil
	}
	instance, parts, cut := strings.Cut(word, ":")
	if !cut {
		return []string{instance}
	}
	for _, c := range strings.Split(parts, ":") {
		profiles = append(profiles, c+"."+instance)
	}
	return profiles
}

func shown(g gpus) (all []gpu) {
	for _, d := range g.Devices {
		if d.Parent == "" {
			all = append(all, gpu{d.UUID, d.PCI, d.Model, d.Minor, d.NUMA, d.Memory, nil, d.State})
			continue
		}
		parent := &all[len(all)-1]
		parent.Slices = append(parent.Slices, d.Profile)
		slices.Sort(parent.Slices)
	}
	return all
}

// everyDevice leases each device by its UUID; conflicting devices are busy meanwhile.
func (n *node) everyDevice(g gpus) {
	n.t.Helper()
	for _, d := range g.Devices {
		if d.State != "free" {
			continue
		}
		script := "echo $CUDA_VISIBLE_DEVICES; berth alloc " + d.UUID + " -- true >/dev/null 2>&1; echo $?"
		want := d.UUID + "\n75\n"
		if d.Parent != "" {
			script += "; berth alloc " + d.Parent + " -- true >/dev/null 2>&1; echo $?"
			want += "75\n"
		}
		n.berth("alloc", d.UUID, "--", "sh", "-c", script).is(0, want, "")
	}
}

// TestTables: the tables as users see them.
func TestTables(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	n.control("lose", "3")
	if got := n.states(); got != "0 free, 1 free, 2 free, 3 lost" {
		t.Errorf("states before the discovery: %s", got)
	}
	n.berth("discover").is(0, `simulated-l40s-pcie: driver 550.163.01, 4 GPUs, 1 HCA; snapshot in /run/berth/inventory.json
GPU 3 (0000:cd:00.0) is lost: nvmlDeviceGetHandleByIndex: GPU is lost
`, "")
	holder := n.start("berth", "alloc", "0,1", "--", "sleep", "1000")
	n.waitForRunning(1)
	n.berth("gpus").is(0, `simulated-l40s-pcie, 4 × NVIDIA L40S, driver 550.163.01, CUDA 12.4, 1 HCA

GPU  MODEL  MEMORY    UTIL  STATE   HOLDER                                     USER  FOR  UUID
0    l40s   0/45 GiB  0%    leased  alloc sleep                                root  AGE   GPU-7766
1    l40s   0/45 GiB  0%    leased  alloc sleep                                root  AGE   GPU-5939
2    l40s   0/45 GiB  0%    free    -                                          -     -    GPU-4284
3    l40s   -         -     lost    (nvmlDeviceGetHandleByIndex: GPU is lost)  -     -    GPU-462a
`, "")
	n.berth("leases").is(0, `LEASE         GPU  REQUEST     HOLDER       USER  FOR  STATE
ID  0,1  device=0,1  alloc sleep  root  AGE   running
`, "")
	if got := n.berth("info", "--json"); got.code != 0 || !strings.Contains(got.stdout, `"devices": {
    "free": 1,
    "leased": 2,
    "lost": 1
  },
  "leases": 1,
  "waiting": 0`) {
		t.Errorf("berth info --json: %+v", got)
	}
	holder.signal(15)
	holder.wait()
	n.checkClean(t)
}

// TestLost: a GPU that NVML can't read is shown with its reason and never leased; the others work.
func TestLost(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	holder := n.start("berth", "alloc", "device=1", "--", "sleep", "1000")
	n.waitForLeases(1)
	n.control("lose", "1")
	n.berth("discover", "-q").is(0, "", "")
	if got := n.states(); got != "0 free, 1 lost, 2 free, 3 free" {
		t.Errorf("states: %s", got)
	}
	const lost = "nvmlDeviceGetHandleByIndex: GPU is lost"
	l := n.waitForLeases(1)[0]
	if !strings.HasSuffix(l.Note, "is lost: "+lost) {
		t.Errorf("the lease's note is %q", l.Note)
	}
	n.berth("alloc", "4", "--", "true").fails(125, "berth: request 4: node has 3 GPUs (1 more lost), 4 asked; berth gpus lists the node's devices")
	n.berth("alloc", "all", "--", "sh", "-c", "echo $BERTH_DEVICES | tr , '\\n' | wc -l").is(0, "3\n", "")
	n.berth("run", "--gpus", "device=1", image(), "true").fails(125,
		"berth: request device=1: 1 is lost (GPU 1, "+l.Devices[0].UUID+"): "+lost+"; see berth gpus, and the kernel's log for the reason")
	holder.signal(15)
	holder.wait()
	n.control("restore", "1")
	n.berth("discover", "-q").is(0, "", "")
	n.berth("alloc", "all", "--", "sh", "-c", "echo $BERTH_DEVICES | tr , '\\n' | wc -l").is(0, "4\n", "")
	n.checkClean(t)
}

// TestHang: a call that hangs in the driver ends with the GPU listed as lost.
func TestHang(t *testing.T) {
	t.Parallel()
	n := newNode(t, "l40s-pcie", options{})
	n.control("hang", "nvmlDeviceGetMemoryInfo", "2")
	n.berth("discover").is(0, `simulated-l40s-pcie: driver 550.163.01, 4 GPUs, 1 HCA; snapshot in /run/berth/inventory.json
GPU 2 (0000:cc:00.0) is lost: NVML call nvmlDeviceGetMemoryInfo did not return within 10s
`, "")
	if got := n.states(); got != "0 free, 1 free, 2 lost, 3 free" {
		t.Errorf("states: %s", got)
	}
	n.checkClean(t)
}
