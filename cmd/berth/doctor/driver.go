package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// noNouveau has the kernel leave its own driver out.
const noNouveau = "echo blacklist nouveau >/etc/modprobe.d/no-nouveau.conf, renew the initramfs (update-initramfs -u, dracut -f), reboot"

// module: the kernel's half of the driver.
func (e *exam) module(r *result) error {
	version, err := driver.Version(e.host)
	if err != nil {
		return err
	}
	addresses, err := driver.Addresses(e.host)
	if err != nil {
		return err
	}
	if version != "" {
		r.ok("%s, %s", version, count(len(addresses), "GPU"))
		return nil
	}
	cards, err := cards(e.host)
	switch {
	case err != nil:
		return err
	case len(cards) == 0:
		r.fail("put one in, or have the hypervisor hand one through", "no driver is loaded, and there is no NVIDIA GPU on the PCI bus")
	case slices.ContainsFunc(cards, func(c card) bool { return c.driver == "nouveau" }):
		r.fail(noNouveau, "NVIDIA's driver isn't loaded: nouveau drives the GPU")
	default:
		r.fail("modprobe nvidia", "NVIDIA's driver isn't loaded, and there are %s on the PCI bus", count(len(cards), "GPU"))
	}
	return nil
}

// card is a GPU as the PCI bus has it.
type card struct{ address, driver string }

// cards lists NVIDIA's display and 3D controllers, and who drives them.
func cards(h gpu.Host) (all []card, err error) {
	names, err := smallfile.Names(h.SysPath("bus/pci/devices"))
	for _, name := range names {
		at := func(file string) string { return h.SysPath("bus/pci/devices", name, file) }
		if vendor, err := smallfile.String(at("vendor")); err != nil || vendor != "0x10de" {
			continue
		}
		class, err := smallfile.String(at("class"))
		if err != nil || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		c := card{address: strings.ToLower(name)}
		if to, err := os.Readlink(at("driver")); err == nil {
			c.driver = filepath.Base(to)
		}
		all = append(all, c)
	}
	return all, err
}

// cardsTaken: each GPU of the bus is the driver's, but those that are given to virtual
// machines.
func (e *exam) cardsTaken(r *result) error {
	all, err := cards(e.host)
	if err != nil {
		return err
	}
	taken, err := driver.Addresses(e.host)
	if err != nil || len(taken) == 0 { // which is said already
		return err
	}
	before, handed := len(r.findings), 0
	for _, c := range all {
		switch {
		case slices.ContainsFunc(taken, func(a string) bool { return strings.EqualFold(a, c.address) }):
		case strings.HasPrefix(c.driver, "vfio"):
			handed++
		case c.driver == "nouveau":
			r.warn(noNouveau, "nouveau drives the GPU %s", c.address)
		default:
			r.warn("echo "+c.address+" >"+e.host.SysPath("bus/pci/drivers/nvidia/bind")+", or the kernel's log says why the driver doesn't take it",
				"the GPU %s is on the PCI bus, and the driver doesn't have it%s", c.address, but(c.driver))
		}
	}
	text := "it has every GPU of the PCI bus"
	if handed > 0 {
		text += fmt.Sprintf(", but %d that virtual machines have (vfio)", handed)
	}
	r.fine(before, "%s", text)
	return nil
}

func but(driver string) string {
	if driver == "" || driver == "nvidia" {
		return ""
	}
	return ", but " + driver
}

// driverFiles: the libraries speak only with a kernel module of their own version. After
// an upgrade without a reboot every program says "Driver/library version mismatch".
func (e *exam) driverFiles(r *result) error {
	module, err := driver.Version(e.host)
	if err != nil || module == "" {
		return err
	}
	before := len(r.findings)
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		found, err := versions(e.host.Driver(), name)
		if err != nil {
			return err
		}
		var others []string
		for _, path := range slices.Sorted(maps.Keys(found)) {
			if found[path] != module {
				others = append(others, path+" is "+cmp.Or(found[path], "without a version"))
			}
		}
		switch {
		case len(found) == 0:
			r.fail("install the driver's libraries of version "+module+", or set host.driver_root to where they are", "there is no %s below %s", name, e.host.Driver())
		case len(others) == len(found):
			r.fail("reboot; or end what uses a GPU, and modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
				"the kernel's module is %s, and %s (NVML says \"Driver/library version mismatch\")", module, listed(others))
		case len(others) > 0:
			r.warn("remove it, and call ldconfig", "the kernel's module is %s, and another installation is beside it: %s", module, listed(others))
		}
	}
	r.fine(before, "libcuda.so.1 and libnvidia-ml.so.1 are those of the module")
	return nil
}

// libraryDirs are where distributions and NVIDIA's installer put libraries of this
// machine's word size.
func libraryDirs() []string {
	dirs := []string{"usr/lib64", "lib64", "usr/lib", "lib"}
	for _, triple := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
		dirs = append(dirs, "usr/lib/"+triple, "lib/"+triple, "usr/lib/"+triple+"/nvidia/current")
	}
	return dirs
}

// versions are the versions in the names of the files that a library's name leads to, by
// their paths. Links are followed below the root, as the driver's own are written.
func versions(top, name string) (map[string]string, error) {
	root, err := inroot.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found := map[string]string{}
	for _, dir := range libraryDirs() {
		f, err := inroot.Open(root, dir+"/"+name, 0)
		if err != nil {
			continue // it is in another directory, or nowhere
		}
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		f.Close()
		if err != nil {
			return nil, err
		}
		version, _ := strings.CutPrefix(filepath.Base(path), strings.TrimSuffix(name, "1"))
		if !strings.Contains(version, ".") {
			version = ""
		}
		found[path] = version
	}
	return found, nil
}

// uvm: the driver's memory manager is a module of its own, which only the start of a
// CUDA program outside of containers would load.
func (e *exam) uvm(r *result) error {
	majors, err := driver.Majors(e.host)
	if err != nil {
		return err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(majors, func(m gpu.Major) bool { return m.Name == name })
	}
	switch {
	case has("nvidia-uvm"):
		r.ok("nvidia-uvm is loaded")
	case has("nvidia"), has("nvidia-frontend"):
		r.fail("modprobe nvidia-uvm && "+e.berth("discover"), "nvidia-uvm isn't loaded: no CUDA program starts")
	}
	return nil
}

// fabric: GPUs behind NVSwitches compute nothing before somebody has told the switches
// how.
func (e *exam) fabric(r *result) error {
	if _, err := os.Stat(e.host.DevPath("nvidia-nvswitchctl")); err != nil {
		return nil
	}
	const socket = "/run/nvidia-fabricmanager/socket"
	for _, path := range []string{socket, e.host.Driver(socket)} {
		if fi, err := os.Stat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
			r.ok("the fabric manager of the NVSwitches runs")
			return nil
		}
	}
	r.warn("systemctl enable --now nvidia-fabricmanager", "the fabric manager of the NVSwitches doesn't run: CUDA says \"system not yet initialized\"")
	return nil
}
