package sim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// testNodes opens each accelerator's node: the kernel knows it, and has no driver for it.
func testNodes(t *testing.T, n Node, p Profile) {
	all := n.devices(p)
	for _, d := range all {
		path := filepath.Join("/dev", d.path)
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if st.Rdev != unix.Mkdev(uint32(d.major), uint32(d.minor)) || st.Mode != unix.S_IFCHR|d.mode {
			t.Errorf("%s is %d:%d, mode %o", path, unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Mode)
		}
		_, err := unix.Open(path, unix.O_RDONLY, 0)
		if !errors.Is(err, unix.ENXIO) && (d.major != majorMisc || !errors.Is(err, unix.ENODEV)) {
			t.Errorf("open %s: %v", path, err)
		}
	}
	if want := len(p.GPUs)*3 + 6; len(all) < want {
		t.Errorf("%d nodes, want at least %d", len(all), want)
	}
	devices, err := os.ReadFile("/proc/devices")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.major != majorMisc && !strings.Contains(string(devices), fmt.Sprintf("\n%d ", d.major)) {
			t.Errorf("/proc/devices has no major %d of %s", d.major, d.path)
		}
	}
}

func testSysfs(t *testing.T, n Node, p Profile) {
	for i, g := range p.GPUs {
		at := resolve(t, "/sys/bus/pci/devices", PCI(g.Path))
		if got, want := strings.Count(at, "/0000:"), len(strings.Fields(g.Path))-1; got != want {
			t.Errorf("%s is below %d bridges, want %d", at, got, want)
		}
		read(t, filepath.Join(at, "numa_node"), strconv.Itoa(p.NUMA(i)))
		read(t, filepath.Join(at, "local_cpulist"), n.CPUs[p.NUMA(i)])
		read(t, filepath.Join(at, "vendor"), "0x10de")
		if got := resolve(t, "/sys/class/drm", fmt.Sprintf("card%d/device", i)); got != at {
			t.Errorf("card%d is of %s", i, got)
		}
		information := filepath.Join("/proc/driver/nvidia/gpus", PCI(g.Path), "information")
		if b, err := os.ReadFile(information); err != nil || !strings.Contains(string(b), p.UUID(i)) {
			t.Errorf("%s: %v %s", information, err, b)
		}
	}
	for _, h := range p.HCAs {
		at := resolve(t, "/sys/bus/pci/devices", PCI(h.Path))
		if got := resolve(t, "/sys/class/infiniband", h.Name+"/device"); got != at {
			t.Errorf("%s is of %s", h.Name, got)
		}
		uverbs := fmt.Sprintf("uverbs%d", h.Uverbs)
		read(t, resolve(t, "/sys/class/infiniband_verbs", uverbs)+"/ibdev", h.Name)
		read(t, "/sys/class/infiniband/"+h.Name+"/ports/1/link_layer", h.LinkLayer)
		if _, err := os.Stat(filepath.Join(at, "net", h.Netdev)); err != nil {
			t.Error(err)
		}
	}
	dangling(t, "/sys/bus/pci/devices", "/sys/bus/pci/drivers/nvidia", "/sys/class/infiniband", "/sys/class/infiniband_verbs",
		"/sys/class/infiniband_mad", "/sys/class/drm", "/sys/class/net", "/sys/class/pci_bus", "/sys/block")
	nodes, err := filepath.Glob("/sys/devices/system/node/node*")
	if err != nil || len(nodes) != p.Nodes() {
		t.Errorf("NUMA nodes %v (%v), want %d", nodes, err, p.Nodes())
	}
}

func resolve(t *testing.T, elem ...string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("%s is %q (%v), want %q", path, b, err, want)
	}
}

// dangling finds dangling links.
func dangling(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			resolve(t, dir, e.Name())
		}
	}
}

func testDriver(t *testing.T, n Node) {
	out, err := exec.Command("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "0, "+n.Blueprint().UUID(0)+"\n") {
		t.Errorf("nvidia-smi: %v\n%s", err, out)
	}
	read(t, "/sys/module/nvidia/version", n.Driver)
	if _, err := os.Stat(filepath.Join(n.Libraries, "libcuda.so."+n.Driver)); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"/etc/berth", "/run/berth"} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there (%v)", dir, err)
		}
	}
	if left, err := filepath.Glob("/var/lib/berth/*"); err != nil || left != nil {
		t.Errorf("/var/lib/berth has %v (%v)", left, err)
	}
}

// TestInsideBare is run by TestBareNode in a node without accelerators' nodes.
func TestInsideBare(t *testing.T) {
	n, err := Current()
	if err != nil || os.Getenv(envOption) != "bare" {
		t.Skip("runs in the node that TestBareNode makes")
	}
	if left, err := filepath.Glob("/dev/nvidia*"); err != nil || left != nil {
		t.Errorf("nodes %v (%v)", left, err)
	}
	if err := exec.Command("modprobe", "nvidia-uvm").Run(); err != nil {
		t.Error(err)
	}
	devices, err := os.ReadFile("/proc/devices")
	if err != nil || !strings.Contains(string(devices), fmt.Sprintf("%d nvidia-uvm\n", n.Majors["nvidia-uvm"])) {
		t.Errorf("%v\n%s", err, devices)
	}
	if _, err := os.Stat("/sys/module/nvidia_uvm"); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob("/dev/nvidia*"); err != nil || left != nil {
		t.Errorf("modprobe made %v (%v)", left, err)
	}
	for _, args := range [][]string{{"-c", "0"}, {"-c", "255"}, {"-u", "-c", "0"}} {
		if out, err := exec.Command("nvidia-modprobe", args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	made, err := filepath.Glob("/dev/nvidia*")
	want := []string{"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidiactl"}
	if diff := cmp.Diff(want, made); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}
