package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// PCI vendors.
const (
	vendorNVIDIA   = 0x10de
	vendorMellanox = 0x15b3
	vendorBroadcom = 0x1000
)

// tree collects the files of /sys: paths are relative to it.
type tree struct {
	files, links map[string]string
	// opaque directories hide the machine's.
	opaque []string
}

func (t tree) file(path, content string) { t.files[path] = content + "\n" }

// link makes a relative link at path to another path of the tree, as sysfs does.
func (t tree) link(path, to string) {
	up := strings.Repeat("../", strings.Count(path, "/"))
	t.links[path] = up + to
}

// mountSys lays the profile's trees over the machine's /sys. What processes
// write to (cgroups, kernel, network) stays the machine's own.
func (n Node) mountSys(p Profile) error {
	stay := []string{"/sys/fs", "/sys/kernel", "/sys/block", "/sys/devices/virtual"}
	real, err := filepath.Glob("/sys/devices/pci*")
	if err != nil {
		return fmt.Errorf("list PCI: %w", err)
	}
	for _, path := range real {
		if _, simulated := p.Bridges[strings.TrimPrefix(filepath.Base(path), "pci0000:")]; !simulated {
			stay = append(stay, path)
		}
	}
	putBack, err := keep(stay)
	if err != nil {
		return err
	}
	t := n.sysTree(p)
	t.realPCI()
	if err := t.write(upperDir("sys")); err != nil {
		return err
	}
	if err := overlayRoot("sys", "/sys"); err != nil {
		return err
	}
	return putBack()
}

func (t tree) write(root string) error {
	for _, dir := range t.opaque {
		path := filepath.Join(root, dir)
		if err := makeDirs(path); err != nil {
			return err
		}
		if err := unix.Setxattr(path, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	files, links := map[string]string{}, map[string]string{}
	for path, content := range t.files {
		files[filepath.Join(root, path)] = content
	}
	for path, to := range t.links {
		links[filepath.Join(root, path)] = to
	}
	return errors.Join(writeAll(files), linkAll(links))
}

// realPCI keeps the machine's own PCI devices in the list, but for accelerators.
func (t tree) realPCI() {
	const list = "/sys/bus/pci/devices"
	entries, err := os.ReadDir(list)
	if err != nil {
		return // a machine without PCI
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(list, e.Name()))
		if err != nil {
			continue
		}
		vendor, err := os.ReadFile(filepath.Join(list, e.Name(), "vendor"))
		if err != nil || strings.Contains("0x10de 0x15b3 0x1002", strings.TrimSpace(string(vendor))) {
			continue
		}
		path := "bus/pci/devices/" + e.Name()
		if _, taken := t.links[path]; !taken {
			t.links[path] = to
		}
	}
}

// sysTree returns everything that the profile adds to /sys.
func (n Node) sysTree(p Profile) tree {
	t := tree{files: map[string]string{}, links: map[string]string{}}
	for bus := range p.Bridges {
		t.opaque = append(t.opaque, "devices/pci0000:"+bus)
	}
	t.opaque = append(t.opaque, "bus/pci/devices", "devices/system/node", "class/drm", "class/infiniband",
		"class/infiniband_verbs", "class/infiniband_mad")
	for i, g := range p.GPUs {
		n.gpuTree(t, i, n.function(t, p, g.Path, function{
			class: 0x030200, vendor: vendorNVIDIA, device: g.Model.PCIDevice, subsystem: g.Model.PCISubsystem,
			driver: "nvidia", speed: "32.0 GT/s PCIe",
		}))
	}
	for _, path := range p.Switches {
		n.function(t, p, path, function{
			class: 0x068000, vendor: vendorNVIDIA, device: 0x22a3, subsystem: 0x179610de,
			driver: "nvidia-nvswitch", speed: "5.0 GT/s PCIe",
		})
	}
	for _, h := range p.HCAs {
		h.tree(t, n.function(t, p, h.Path, function{
			class: 0x020700, vendor: vendorMellanox, device: 0x1021, subsystem: 0x002315b3,
			driver: "mlx5_core", speed: "32.0 GT/s PCIe",
		}))
	}
	if len(p.HCAs) > 0 {
		rdma(t)
	}
	n.memoryNodes(t)
	for _, m := range n.modules(p) {
		n.module(t, m)
	}
	return t
}

func (n Node) module(t tree, name string) {
	t.file("module/"+name+"/initstate", "live")
	t.file("module/"+name+"/refcnt", "2")
	if strings.HasPrefix(name, "nvidia") {
		t.file("module/"+name+"/version", n.Driver)
	}
}

// memoryNodes replaces the machine's NUMA nodes by the profile's.
func (n Node) memoryNodes(t tree) {
	const dir = "devices/system/node/"
	last := len(n.CPUs) - 1
	all := "0"
	if last > 0 {
		all = fmt.Sprintf("0-%d", last)
	}
	for _, name := range []string{"online", "possible", "has_cpu", "has_memory", "has_normal_memory"} {
		t.file(dir+name, all)
	}
	for i, cpus := range n.CPUs {
		node := fmt.Sprintf("%snode%d/", dir, i)
		t.file(node+"cpulist", cpus)
		t.file(node+"cpumap", maskCPUs(cpus))
		t.file(node+"meminfo", fmt.Sprintf("Node %d MemTotal:       1056711680 kB\nNode %d MemFree:        1000000000 kB", i, i))
		distance := make([]string, len(n.CPUs))
		for k := range distance {
			distance[k] = "21"
		}
		distance[i] = "10"
		t.file(node+"distance", strings.Join(distance, " "))
	}
}

// function describes one PCI function.
type function struct {
	class          uint32
	vendor, device uint16
	subsystem      uint32 // device and vendor
	driver, speed  string
}

// function puts the function at the end of a path and the bridges above it into
// the tree, and returns its directory.
func (n Node) function(t tree, p Profile, path string, f function) string {
	steps := strings.Fields(path)
	dir := "devices/pci0000:" + steps[0]
	for i, step := range steps[1:] {
		dir += "/0000:" + step
		if i == len(steps)-2 {
			break
		}
		t.files[dir+"/config"] = bridgeConfig()
		n.describe(t, p, path, dir, function{
			class: 0x060400, vendor: vendorBroadcom, device: 0xc030, driver: "pcieport", speed: "32.0 GT/s PCIe",
		})
		t.files[dir+"/pci_bus/0000:"+steps[i+2][:2]+"/"+keepName] = ""
		t.link("class/pci_bus/0000:"+steps[i+2][:2], dir+"/pci_bus/0000:"+steps[i+2][:2])
	}
	bus := "devices/pci0000:" + steps[0] + "/pci_bus/0000:" + steps[0]
	t.file(bus+"/cpulistaffinity", n.CPUs[p.numa(path)])
	t.link("class/pci_bus/0000:"+steps[0], bus)
	n.describe(t, p, path, dir, f)
	return dir
}

func (n Node) describe(t tree, p Profile, path, dir string, f function) {
	address := filepath.Base(dir)
	node := p.numa(path)
	for name, value := range map[string]string{
		"class": fmt.Sprintf("0x%06x", f.class), "vendor": fmt.Sprintf("0x%04x", f.vendor),
		"device": fmt.Sprintf("0x%04x", f.device), "subsystem_vendor": fmt.Sprintf("0x%04x", f.subsystem&0xffff),
		"subsystem_device": fmt.Sprintf("0x%04x", f.subsystem>>16), "numa_node": fmt.Sprint(node),
		"local_cpulist": n.CPUs[node], "local_cpus": maskCPUs(n.CPUs[node]), "enable": "1", "revision": "0xa1",
		"current_link_speed": f.speed, "max_link_speed": f.speed, "current_link_width": "16", "max_link_width": "16",
		"uevent": fmt.Sprintf("DRIVER=%s\nPCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SLOT_NAME=%s", f.driver, f.class, f.vendor, f.device, address),
	} {
		t.file(dir+"/"+name, value)
	}
	t.link(dir+"/subsystem", "bus/pci")
	t.link(dir+"/driver", "bus/pci/drivers/"+f.driver)
	t.link("bus/pci/drivers/"+f.driver+"/"+address, dir)
	t.link("bus/pci/devices/"+address, dir)
}

// gpuConfig returns the header of a GPU's PCI configuration space. A device that fell off the bus
// reads as all ones.
func (n Node) gpuConfig(i int) string {
	space := make([]byte, 64)
	binary.LittleEndian.PutUint16(space, vendorNVIDIA)
	binary.LittleEndian.PutUint16(space[2:], n.Blueprint().GPUs[i].Model.PCIDevice)
	if n.GPUs[i].Dropped {
		for k := range space {
			space[k] = 0xff
		}
	}
	return string(space)
}

func (n Node) gpuTree(t tree, i int, dir string) {
	t.file(dir+"/boot_vga", "0")
	t.files[dir+"/config"] = n.gpuConfig(i)
	for name, minor := range map[string]int{fmt.Sprintf("card%d", i): i, fmt.Sprintf("renderD%d", 128+i): 128 + i} {
		at := dir + "/drm/" + name
		t.file(at+"/dev", fmt.Sprintf("%d:%d", majorDRM, minor))
		t.file(at+"/uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=dri/%s\nDEVTYPE=drm_minor", majorDRM, minor, name))
		t.link(at+"/device", dir)
		t.link(at+"/subsystem", "class/drm")
		t.link("class/drm/"+name, at)
		t.link(fmt.Sprintf("dev/char/%d:%d", majorDRM, minor), at)
	}
}
