package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdidriver "github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// removeNouveau keeps the kernel's own driver from loading.
const removeNouveau = "echo blacklist nouveau >/etc/modprobe.d/no-nouveau.conf, renew the initramfs (update-initramfs -u, dracut -f), reboot"

// driverFacts are the driver and the GPUs of the PCI bus.
type driverFacts struct {
	// version is the kernel module's, "" if it isn't loaded.
	version string
	// bound are the PCI addresses of the GPUs that are bound to the driver.
	bound []string
	// cards are the GPUs of the PCI bus.
	cards []pciGPU
	// bindPath is the file that binds a GPU to the driver.
	bindPath string
}

// pciGPU is a GPU of the PCI bus and the name of the driver to which it is bound.
type pciGPU struct{ address, driver string }

func (e *examination) readDriver() (d driverFacts, err error) {
	if d.version, err = driver.Version(e.host); err != nil {
		return d, err
	}
	if d.bound, err = driver.Addresses(e.host); err != nil {
		return d, err
	}
	d.bindPath = e.host.SysPath("bus/pci/drivers/nvidia/bind")
	d.cards, err = readPCIGPUs(e.host)
	return d, err
}

// readPCIGPUs lists NVIDIA's display and 3D controllers.
func readPCIGPUs(h gpu.Host) (all []pciGPU, err error) {
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
		g := pciGPU{address: strings.ToLower(name)}
		if to, err := os.Readlink(at("driver")); err == nil {
			g.driver = filepath.Base(to)
		}
		all = append(all, g)
	}
	return all, err
}

// decideModule reports whether the kernel module is loaded.
func decideModule(r *report, d driverFacts) {
	passedThrough := func(g pciGPU) bool { return strings.HasPrefix(g.driver, "vfio") }
	switch {
	case d.version != "" && len(d.bound) > 0:
		r.ok("%s, %s", d.version, output.FormatCount(len(d.bound), "GPU"))
	case d.version != "" && len(d.cards) == 0:
		r.warn("install a GPU, or pass one through to this virtual machine", "%s is loaded, and there is no NVIDIA GPU on the PCI bus", d.version)
	case d.version != "" && !slices.ContainsFunc(d.cards, func(g pciGPU) bool { return !passedThrough(g) }):
		r.ok("%s, without a GPU: all are passed through to virtual machines (vfio)", d.version)
	case d.version != "":
		r.fail("dmesg | grep NVRM shows why", "%s is loaded and bound to none of the %s on the PCI bus", d.version, output.FormatCount(len(d.cards), "GPU"))
	case len(d.cards) == 0:
		r.fail("install a GPU, or pass one through to this virtual machine", "no driver is loaded, and there is no NVIDIA GPU on the PCI bus")
	case slices.ContainsFunc(d.cards, func(g pciGPU) bool { return g.driver == "nouveau" }):
		r.fail(removeNouveau, "NVIDIA's driver isn't loaded: the GPU is bound to nouveau")
	default:
		r.fail("modprobe nvidia", "NVIDIA's driver isn't loaded, and there are %s on the PCI bus", output.FormatCount(len(d.cards), "GPU"))
	}
}

// decideCards reports GPUs of the PCI bus that aren't bound to the driver. GPUs that are
// passed through to virtual machines are no problem.
func decideCards(r *report, d driverFacts) {
	if len(d.bound) == 0 {
		return // reported by driver.module
	}
	passedThrough := 0
	for _, g := range d.cards {
		other := ""
		if g.driver != "" && g.driver != "nvidia" {
			other = ", but " + g.driver
		}
		switch {
		case slices.ContainsFunc(d.bound, func(a string) bool { return strings.EqualFold(a, g.address) }):
		case strings.HasPrefix(g.driver, "vfio"): // passed through to a virtual machine
			passedThrough++
		case g.driver == "nouveau":
			r.warn(removeNouveau, "the GPU %s is bound to nouveau", g.address)
		default:
			r.warn("echo "+g.address+" >"+d.bindPath+"; if that fails, dmesg | grep NVRM shows why",
				"the GPU %s is on the PCI bus, and not bound to the driver%s", g.address, other)
		}
	}
	text := "every GPU of the PCI bus is bound to it"
	if passedThrough > 0 {
		text += fmt.Sprintf(", except %d that are passed through to virtual machines (vfio)", passedThrough)
	}
	r.okUnlessReported("%s", text)
}

// checkDriverFiles compares the versions of the libraries with the kernel module's. After
// an upgrade without a reboot every program fails with "Driver/library version mismatch".
func (e *examination) checkDriverFiles(r *report) error {
	module, err := driver.Version(e.host)
	if err != nil || module == "" {
		return err
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		found, err := readLibraryVersions(e.host.Driver(), name)
		if err != nil {
			return err
		}
		decideLibrary(r, name, e.host.Driver(), module, found)
	}
	r.okUnlessReported("libcuda.so.1 and libnvidia-ml.so.1 have the version of the module")
	return nil
}

// decideLibrary reports copies of a library that are not of the module's version. found
// are the versions of the copies by path.
func decideLibrary(r *report, name, root, module string, found map[string]string) {
	var others []string
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if found[path] != module {
			others = append(others, path+" is "+cmp.Or(found[path], "without a version"))
		}
	}
	switch {
	case len(found) == 0:
		r.fail("install the driver's libraries of version "+module+", or set host.driver_root to where they are", "there is no %s below %s", name, root)
	case len(others) == len(found):
		r.fail("reboot; or end what uses a GPU, and modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
			"the kernel's module is %s, and %s (NVML says \"Driver/library version mismatch\")", module, listFirst(others))
	case len(others) > 0:
		r.warn("remove it, and call ldconfig", "the kernel's module is %s, and another installation is beside it: %s", module, listFirst(others))
	}
}

// readLibraryVersions returns the versions in the names of the files that a library's name
// leads to, by path. Links are followed below the root, as the driver's own are written.
func readLibraryVersions(top, name string) (map[string]string, error) {
	root, err := inroot.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found := map[string]string{}
	for _, dir := range cdidriver.SearchedDirectories(root) {
		f, err := inroot.Open(root, dir+"/"+name, 0)
		if err != nil {
			continue // it may be in another directory
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

func (e *examination) checkUVM(r *report) error {
	majors, err := gpu.ReadMajors(e.host)
	if err == nil {
		decideUVM(r, majors)
	}
	return err
}

// decideUVM reports whether the driver's memory manager is loaded. Only the start of a
// CUDA program outside of containers loads that module.
func decideUVM(r *report, majors []gpu.Major) {
	has := func(name string) bool {
		return slices.ContainsFunc(majors, func(m gpu.Major) bool { return m.Name == name })
	}
	switch {
	case has("nvidia-uvm"):
		r.ok("nvidia-uvm is loaded")
	case has("nvidia"), has("nvidia-frontend"):
		r.fail("modprobe nvidia-uvm && "+r.command("discover"), "nvidia-uvm isn't loaded: no CUDA program starts")
	}
}

// checkFabricManager looks for the program that configures NVSwitches. GPUs behind
// switches can't be used before it has run.
func (e *examination) checkFabricManager(r *report) error {
	if _, err := os.Stat(e.host.DevPath("nvidia-nvswitchctl")); err != nil {
		return nil //nolint:nilerr // no NVSwitches
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
