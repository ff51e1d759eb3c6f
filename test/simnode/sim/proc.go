package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountProc puts the driver's files into /proc.
func (n Node) mountProc(p Profile) error {
	// A user namespace may mount a procfs only where one without mounts over its files is visible, as on a real machine.
	whole := filepath.Join(Dir, "procfs")
	if err := makeDirs(whole); err != nil {
		return err
	}
	if err := unix.Mount("proc", whole, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount procfs at %s: %w", whole, err)
	}
	if err := unix.Mount("tmpfs", "/proc/driver", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=555"); err != nil {
		return fmt.Errorf("mount tmpfs on /proc/driver: %w", err)
	}
	if err := n.writeProcDriver(p); err != nil {
		return err
	}
	for _, name := range []string{"devices", "modules"} {
		real := filepath.Join("/proc", name)
		b, err := os.ReadFile(real)
		if err != nil {
			continue // a kernel without modules has no list of them
		}
		if err := writeAll(map[string]string{
			filepath.Join(Dir, "real-"+name): string(b), filepath.Join(Dir, "proc-"+name): "",
		}); err != nil {
			return err
		}
		if err := bind(filepath.Join(Dir, "proc-"+name), real); err != nil {
			return err
		}
	}
	return n.writeLists(p)
}

// writeLists renews /proc/devices and /proc/modules in place: they are mounts.
func (n Node) writeLists(p Profile) error {
	lists := map[string]func(Profile, string) string{"devices": n.procDevices, "modules": n.procModules}
	for name, content := range lists {
		b, err := os.ReadFile(filepath.Join(Dir, "real-"+name))
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(Dir, "proc-"+name), []byte(content(p, string(b))), 0o444); err != nil {
			return fmt.Errorf("write /proc/%s: %w", name, err)
		}
	}
	return nil
}

// procDevices adds the drivers' majors to the kernel's list of character devices.
func (n Node) procDevices(p Profile, kernel string) string {
	var b strings.Builder
	add := func(major int, name string) { fmt.Fprintf(&b, "%3d %s\n", major, name) }
	for _, name := range []string{"nvidia", "nvidia-modeset", "nvidiactl"} {
		add(majorNVIDIA, name)
	}
	add(majorDRM, "drm")
	if len(p.HCAs) > 0 {
		add(majorInfiniBand, "infiniband_mad")
		add(majorInfiniBand, "infiniband_verbs")
	}
	for name, major := range n.Majors {
		switch {
		case name == "nvidia-uvm" && !n.UVM:
		case (name == "nvidia-nvswitch" || name == "nvidia-nvlink") && len(p.Switches) == 0:
		case name == "nvidia-fs" && p.Files == 0, name == "gdrdrv" && !p.GDRCopy:
		default:
			add(major, name)
		}
	}
	added := b.String()
	chars, blocks, _ := strings.Cut(kernel, "\nBlock devices:")
	return sortDevices(chars+added) + "\nBlock devices:" + blocks
}

func (n Node) procModules(p Profile, kernel string) string {
	var b strings.Builder
	for _, m := range n.modules(p) {
		fmt.Fprintf(&b, "%s 8781824 2 - Live 0x0000000000000000 (POE)\n", m)
	}
	return b.String() + kernel
}

// modules lists the simulated kernel modules in /sys/module's spelling.
func (n Node) modules(p Profile) []string {
	all := []string{"nvidia", "nvidia_modeset", "nvidia_drm"}
	if n.UVM {
		all = append(all, "nvidia_uvm")
	}
	return append(all, p.Modules...)
}

// writeProcDriver writes all of /proc/driver anew.
func (n Node) writeProcDriver(p Profile) error {
	files := map[string]string{
		"nvidia/version": fmt.Sprintf("NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  (simulated)\n"+
			"GCC version:  gcc version 12.2.0\n", n.Driver),
		"nvidia/params":                   params,
		"nvidia/registry":                 "Binary: \"\"\n",
		"nvidia/capabilities/mig/config":  capability(1, 0o400),
		"nvidia/capabilities/mig/monitor": capability(2, 0o444),
		"nvidia-caps/mig-minors":          migMinors(),
		"nvidia/suspend":                  "suspend hibernate resume\n",
		"nvidia/suspend_depth":            "default modeset uvm\n",
		"nvidia/patches/README":           "Patches of the driver are listed here: there are none.\n",
		"nvidia/warnings/README":          "Warnings of the driver are listed here: there are none.\n",
	}
	for i, g := range p.GPUs {
		at := filepath.Join("nvidia/gpus", PCI(g.Path))
		files[at+"/information"] = n.information(p, i)
		files[at+"/registry"] = "Binary: \"\"\n"
		files[at+"/power"] = power
		if len(g.Model.Slicings) > 0 {
			files[fmt.Sprintf("nvidia/capabilities/gpu%d/mig/.keep", g.Minor)] = ""
		}
		for _, s := range n.Slices(i) {
			gi, ci := s.Minors(g.Minor)
			dir := fmt.Sprintf("nvidia/capabilities/gpu%d/mig/gi%d", g.Minor, s.GI)
			files[dir+"/access"] = capability(gi, 0o444)
			files[fmt.Sprintf("%s/ci%d/access", dir, s.CI)] = capability(ci, 0o444)
		}
	}
	return n.renewProcDriver(files)
}

// params are the module's parameters, those of device files among others.
const params = `ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
DynamicPowerManagement: 3
EnableGpuFirmware: 18
EnableResizableBar: 0
ImexChannelCount: 2048
CreateImexChannel0: 0
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
TemporaryFilePath: ""
ExcludedGpus: ""
`

// power is a GPU's file of that name.
const power = `Runtime D3 status:          Disabled by default
Video Memory:               Active

GPU Hardware Support:
 Video Memory Self Refresh: Not Supported
 Video Memory Off:          Not Supported

S0ix Power Management:
 Platform Support:          Not Supported
 Status:                    Disabled
`

// renewProcDriver removes what is no longer there after it wrote what is.
func (n Node) renewProcDriver(files map[string]string) error {
	full := map[string]string{}
	for name, content := range files {
		full[filepath.Join("/proc/driver", name)] = content
	}
	if err := writeAll(full); err != nil {
		return err
	}
	return prune("/proc/driver/nvidia/capabilities", full)
}

func capability(minor, mode int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

func (n Node) information(p Profile, i int) string {
	g := p.GPUs[i]
	return fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\n"+
		"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\n"+
		"GPU Firmware: \t %s\nGPU Excluded:\t No\n", g.Model.Name, 100+i, n.UUID(i), PCI(g.Path), g.Minor, n.Driver)
}
