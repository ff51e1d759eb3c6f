package sim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

// TestInside is run by TestProfiles in nodes.
func TestInside(t *testing.T) {
	n, err := Current()
	if err != nil || os.Getenv(envInside) == "" {
		t.Skip("runs in the nodes that TestProfiles makes")
	}
	p := n.Blueprint()
	lib := nvml.New()
	must(t, lib.Init())
	t.Cleanup(func() { must(t, lib.Shutdown()) })
	t.Run("name", func(t *testing.T) { testName(t, p) })
	t.Run("system", func(t *testing.T) { testSystem(t, lib, n) })
	t.Run("GPUs", func(t *testing.T) { testGPUs(t, lib, n, p) })
	t.Run("slices", func(t *testing.T) { testSlices(t, lib, n, p) })
	t.Run("links", func(t *testing.T) { testLinks(t, lib, p) })
	t.Run("nodes", func(t *testing.T) { testNodes(t, n, p) })
	t.Run("sysfs", func(t *testing.T) { testSysfs(t, n, p) })
	t.Run("driver", func(t *testing.T) { testDriver(t, n) })
	t.Run("data", func(t *testing.T) { testData(t, n) })
	t.Run("features", func(t *testing.T) { testFeatures(t, n, p) })
	t.Run("proc", func(t *testing.T) { testProc(t, n, p) })
	t.Run("container", func(t *testing.T) { testContainer(t, n, p) })
	t.Run("rest", func(t *testing.T) { testRest(t, lib) })
	t.Run("changes", func(t *testing.T) { testChanges(t, lib, p) })
}

func must(t *testing.T, r nvml.Return) {
	t.Helper()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
}

func control(t *testing.T, args ...string) {
	t.Helper()
	if err := Control(args...); err != nil {
		t.Fatal(err)
	}
}

func testName(t *testing.T, p Profile) {
	name, err := os.Hostname()
	if err != nil || name != "simulated-"+p.Name {
		t.Errorf("host is %q (%v)", name, err)
	}
}

func testSystem(t *testing.T, lib nvml.Interface, n Node) {
	driver, r := lib.SystemGetDriverVersion()
	must(t, r)
	cuda, r := lib.SystemGetCudaDriverVersion_v2()
	must(t, r)
	version, r := lib.SystemGetNVMLVersion()
	must(t, r)
	got := []any{driver, cuda, version}
	if diff := cmp.Diff([]any{n.Driver, 12040, "12." + n.Driver}, got); diff != "" {
		t.Error(diff)
	}
}

// seen is NVML's report of one GPU.
type seen struct {
	UUID, Name, PCI, Compute string
	Minor, Index             int
	Memory                   uint64
	Architecture             nvml.DeviceArchitecture
	MaxSlices                int
}

func testGPUs(t *testing.T, lib nvml.Interface, n Node, p Profile) {
	count, r := lib.DeviceGetCount()
	must(t, r)
	if count != len(p.GPUs) {
		t.Fatalf("%d GPUs, want %d", count, len(p.GPUs))
	}
	for i, g := range p.GPUs {
		d, r := lib.DeviceGetHandleByIndex(i)
		must(t, r)
		want := seen{
			UUID: p.UUID(i), Name: g.Model.Name, PCI: PCI(g.Path), Compute: g.Model.Compute, Minor: g.Minor, Index: i,
			Memory: g.Model.MemoryMiB << 20, Architecture: nvml.DeviceArchitecture(g.Model.Architecture),
		}
		if len(g.Model.Slicings) > 0 {
			want.MaxSlices = 7
		}
		if diff := cmp.Diff(want, look(t, d)); diff != "" {
			t.Errorf("GPU %d: %s", i, diff)
		}
		same, r := lib.DeviceGetHandleByUUID(p.UUID(i))
		if must(t, r); same != d {
			t.Errorf("GPU %d has another handle by UUID", i)
		}
		same, r = lib.DeviceGetHandleByPciBusId(strings.ToUpper(PCI(g.Path)))
		if must(t, r); same != d {
			t.Errorf("GPU %d has another handle by address", i)
		}
		now, pending, r := d.GetMigMode()
		if len(g.Model.Slicings) == 0 {
			if r != nvml.ERROR_NOT_SUPPORTED {
				t.Errorf("MIG mode of a GPU without MIG: %v", r)
			}
		} else if r != nvml.SUCCESS || now != bit(n.GPUs[i].MIG) || pending != now {
			t.Errorf("MIG mode of GPU %d: %d, %d, %v", i, now, pending, r)
		}
	}
	if _, r := lib.DeviceGetHandleByIndex(count); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("GPU %d: %v", count, r)
	}
}

func look(t *testing.T, d nvml.Device) seen {
	t.Helper()
	var s seen
	var r nvml.Return
	s.UUID, r = d.GetUUID()
	must(t, r)
	s.Name, r = d.GetName()
	must(t, r)
	info, r := d.GetPciInfo()
	must(t, r)
	s.PCI = fmt.Sprintf("%04x:%02x:%02x.0", info.Domain, info.Bus, info.Device)
	address := make([]byte, 0, len(info.BusId))
	for _, c := range info.BusId {
		address = append(address, byte(c))
	}
	if text := string(bytes.TrimRight(address, "\x00")); !strings.EqualFold(text, "0000"+s.PCI) {
		t.Errorf("address is %q beside %s", text, s.PCI)
	}
	major, minor, r := d.GetCudaComputeCapability()
	must(t, r)
	s.Compute = fmt.Sprintf("%d.%d", major, minor)
	s.Minor, r = d.GetMinorNumber()
	must(t, r)
	s.Index, r = d.GetIndex()
	must(t, r)
	memory, r := d.GetMemoryInfo()
	must(t, r)
	second, r := d.GetMemoryInfo_v2()
	must(t, r)
	if s.Memory = memory.Total; second.Total != memory.Total || memory.Free+memory.Used != memory.Total {
		t.Errorf("memory is %v and %v", memory, second)
	}
	s.Architecture, r = d.GetArchitecture()
	must(t, r)
	s.MaxSlices, r = d.GetMaxMigDeviceCount()
	must(t, r)
	return s
}

func testLinks(t *testing.T, lib nvml.Interface, p Profile) {
	for i, g := range p.GPUs {
		d, r := lib.DeviceGetHandleByIndex(i)
		must(t, r)
		var links []int
		for k := range nvml.NVLINK_MAX_LINKS {
			state, r := d.GetNvLinkState(k)
			if r != nvml.SUCCESS {
				continue
			}
			info, r := d.GetNvLinkRemotePciInfo(k)
			must(t, r)
			for sw, path := range p.Switches {
				if PCI(path) == fmt.Sprintf("%04x:%02x:%02x.0", info.Domain, info.Bus, info.Device) && state == nvml.FEATURE_ENABLED {
					links = append(links, sw)
				}
			}
		}
		if diff := cmp.Diff(g.Links, links); diff != "" {
			t.Errorf("GPU %d: %s", i, diff)
		}
		for k, other := range p.GPUs {
			e, r := lib.DeviceGetHandleByIndex(k)
			must(t, r)
			level, r := d.GetTopologyCommonAncestor(e)
			if must(t, r); int(level) != p.Common(g.Path, other.Path) {
				t.Errorf("GPUs %d and %d: level %d", i, k, level)
			}
		}
	}
}

// testContainer hides the node's state as a container does, and all nodes but those of the last
// GPU, or of the last slice: the library then shows only this one.
func testContainer(t *testing.T, n Node, p Profile) {
	last := len(p.GPUs) - 1
	want := func(gpu int) string {
		return fmt.Sprintf("GPU 0: %s (UUID: %s)\n", p.GPUs[gpu].Model.Name, p.UUID(gpu))
	}
	if got := listIn(t, fmt.Sprintf("nvidia%d c 195 %[1]d", p.GPUs[last].Minor)); got != want(last) {
		t.Errorf("with one GPU\n%swant\n%s", got, want(last))
	}
	if p.Name != "dgx-a100-mig" {
		return
	}
	s := n.Slices(2)[1]
	gi, ci := s.Minors(p.GPUs[2].Minor)
	got := listIn(t, fmt.Sprintf("nvidia%d c 195 %[1]d", p.GPUs[2].Minor),
		fmt.Sprintf("nvidia-caps/nvidia-cap%d c %d %[1]d", gi, n.Majors["nvidia-caps"]),
		fmt.Sprintf("nvidia-caps/nvidia-cap%d c %d %[1]d", ci, n.Majors["nvidia-caps"]))
	slice := fmt.Sprintf("  MIG %-13s Device  0: (UUID: %s)\n", s.Profile, p.SliceUUID(2, s))
	if got != want(2)+slice {
		t.Errorf("with one slice\n%swant\n%s", got, want(2)+slice)
	}
}

// listIn returns nvidia-smi's list where only these nodes exist.
func listIn(t *testing.T, nodes ...string) string {
	t.Helper()
	script := "set -e; mount -t tmpfs x /run; mount -t tmpfs x /dev; mkdir /dev/nvidia-caps; mknod /dev/null c 1 3;" +
		"mknod /dev/nvidiactl c 195 255; "
	for _, node := range nodes {
		script += "mknod /dev/" + node + "; "
	}
	out, err := exec.Command("unshare", "--mount", "sh", "-c", script+"nvidia-smi -L").CombinedOutput()
	if err != nil {
		t.Errorf("nvidia-smi: %v", err)
	}
	return string(out)
}

func testRest(t *testing.T, lib nvml.Interface) {
	d, r := lib.DeviceGetHandleByIndex(0)
	must(t, r)
	if _, r := d.GetAccountingBufferSize(); r != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("accounting: %v", r)
	}
	if _, r := d.GetTemperature(nvml.TEMPERATURE_GPU); r != nvml.SUCCESS {
		t.Errorf("temperature: %v", r)
	}
}
