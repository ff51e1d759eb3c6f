package driver

import "github.com/berth-gpu/berth/gpu"

// Constants for the capabilities of a row: its files belong to each set that has one of them.
const (
	// every is for files of all sets, except the set of gpu.Compat32 alone.
	every = gpu.Compute | gpu.Graphics | gpu.Utility | gpu.Video | gpu.Display | gpu.NGX
	// drawing is for graphics with or without an X server: both need the same libraries.
	drawing = gpu.Graphics | gpu.Display
	// stays is for files that stay on the host: they serve the desktop's settings or a hypervisor.
	stays = gpu.Capabilities(0)
)

// whole is the set of all capabilities.
const whole = every | gpu.Compat32

// need is the consequence of a missing file.
type need bool

const (
	required need = true  // Build fails without it
	optional need = false // some versions or installations lack it
)

// library is a row of the table: one of the driver's shared libraries. It goes to
// lib64, or as a library of 32 bits, which only sets with compat32 have, to lib.
type library struct {
	// name is "libcuda" for libcuda.so.VERSION; a name with ".so." is the whole file name.
	name string
	caps gpu.Capabilities
	need need
}

// libraryTable is the table of libraries, by NVIDIA's own division. A library that isn't in the
// table but has the driver's version in its name comes from a driver that is newer than the table.
// It goes to every set: known libraries may need it, and a library alone gives no access to devices.
func libraryTable() []library {
	return []library{
		{"libcuda", gpu.Compute, required},
		{"libcudadebugger", gpu.Compute, optional},
		{"libnvidia-allocator", gpu.Compute | drawing, optional},
		{"libnvidia-compiler", gpu.Compute, optional},
		{"libnvidia-fatbinaryloader", gpu.Compute, optional},
		{"libnvidia-gpucomp", gpu.Compute | drawing, optional},
		{"libnvidia-nvvm", gpu.Compute, optional},
		{"libnvidia-nvvm70.so.4", gpu.Compute, optional},
		{"libnvidia-opencl", gpu.Compute, optional},
		{"libnvidia-pkcs11", gpu.Compute, optional},
		{"libnvidia-pkcs11-openssl3", gpu.Compute, optional},
		{"libnvidia-ptxjitcompiler", gpu.Compute, optional},
		{"libnvidia-tileiras", gpu.Compute, optional},

		{"libnvidia-ml", gpu.Utility, required},
		{"libnvidia-cfg", gpu.Utility | gpu.Display, optional},
		{"libnvidia-nscq", gpu.Utility, optional},
		{"libnvidia-sandboxutils", gpu.Utility, optional},

		{"libnvcuvid", gpu.Video, optional},
		{"libnvidia-encode", gpu.Video, optional},
		{"libnvidia-opticalflow", gpu.Video, optional},
		{"libvdpau_nvidia", gpu.Video, optional},

		{"libEGL", drawing, optional}, // of drivers before glvnd, as the next three
		{"libGL", drawing, optional},
		{"libGLESv1_CM", drawing, optional},
		{"libGLESv2", drawing, optional},
		{"libEGL_nvidia", drawing, optional},
		{"libGLESv1_CM_nvidia", drawing, optional},
		{"libGLESv2_nvidia", drawing, optional},
		{"libGLX_nvidia", drawing, optional},
		{"libnvidia-api.so.1", drawing | gpu.NGX, optional},
		{"libnvidia-cbl", drawing, optional},
		{"libnvidia-egl-gbm.so.1", drawing, optional},
		{"libnvidia-egl-wayland.so.1", drawing, optional},
		{"libnvidia-egl-wayland2.so.1", drawing, optional},
		{"libnvidia-egl-xcb.so.1", drawing, optional},
		{"libnvidia-egl-xlib.so.1", drawing, optional},
		{"libnvidia-eglcore", drawing, optional},
		{"libnvidia-fbc", drawing, optional},
		{"libnvidia-glcore", drawing, optional},
		{"libnvidia-glsi", drawing, optional},
		{"libnvidia-glvkspirv", drawing, optional},
		{"libnvidia-ifr", drawing, optional},
		{"libnvidia-present", drawing, optional},
		{"libnvidia-rtcore", drawing, optional},
		{"libnvidia-tls", drawing, optional},
		{"libnvidia-vksc-core", drawing, optional},
		{"libnvidia-vulkan-producer", drawing, optional},
		{"libnvoptix", drawing, optional},

		{"libnvidia-ngx", gpu.NGX, optional},

		{"libglxserver_nvidia", stays, optional}, // it is a module of the X server, see the extras
		{"libnvidia-gtk2", stays, optional},
		{"libnvidia-gtk3", stays, optional},
		{"libnvidia-vgpu", stays, optional},
		{"libnvidia-vgxcfg", stays, optional},
		{"libnvidia-wayland-client", stays, optional},
		{"libnvidia-wfb", stays, optional},
	}
}

// unknownLibrary is the row of libraries that the table doesn't know.
func unknownLibrary() library { return library{caps: every, need: optional} }

// program is a row of the table; its file goes to bin. Programs that aren't in the table
// (nvidia-modprobe, nvidia-settings) stay on the host.
type program struct {
	name string
	caps gpu.Capabilities
}

// programTable is the table of programs, all optional.
func programTable() []program {
	return []program{
		{"nvidia-smi", gpu.Utility},
		{"nvidia-debugdump", gpu.Utility},
		{"nvidia-persistenced", gpu.Utility},
		{"nv-fabricmanager", gpu.Utility},
		{"nvidia-cuda-mps-control", gpu.Compute},
		{"nvidia-cuda-mps-server", gpu.Compute},
		{"nvidia-imex", gpu.Compute | gpu.Utility},
		{"nvidia-imex-ctl", gpu.Compute | gpu.Utility},
		{"nvidia-ngx-updater", gpu.NGX},
		{"nvidia-pcc", drawing},
	}
}

// extra is a row of the table: a file that is neither library nor program and has a
// place of its own in a container, where it is bound by itself. All are optional.
// In names and places VERSION stands for the driver's version, MACHINE for x86_64 or
// aarch64, TRIPLE for the name of its directories in Debian.
type extra struct {
	// names, of which the first that exists counts. A name with a * is a pattern: all matching
	// files count.
	names []string
	// from are directories below the driver root, of which the first that has the file counts; none
	// means the library directories.
	from []string
	// to are destinations in the container; one that ends in / keeps the file's name.
	to   []string
	caps gpu.Capabilities
	// bits32 is only for sets with compat32.
	bits32 bool
}

// extraTable is the table of extras.
//
// Firmware is in every set: older kernels look for it in the root of the process that is the first
// to open the device.
func extraTable() []extra {
	return []extra{
		{names: []string{"gsp*.bin"}, from: firmwarePaths(), to: []string{"/lib/firmware/nvidia/VERSION/"}, caps: every},

		{names: []string{"nvidia.icd"}, from: configPaths("OpenCL/vendors"), to: []string{"/etc/OpenCL/vendors/"}, caps: gpu.Compute},

		{names: []string{"10_nvidia.json"}, from: configPaths("glvnd/egl_vendor.d"), to: []string{"/usr/share/glvnd/egl_vendor.d/"}, caps: drawing},
		{names: []string{"*_nvidia_*.json"}, from: configPaths("egl/egl_external_platform.d"), to: []string{"/usr/share/egl/egl_external_platform.d/"}, caps: drawing},
		{names: []string{"nvidia_icd.json", "nvidia_icd.MACHINE.json"}, from: vulkanPaths("icd.d"), to: []string{"/etc/vulkan/icd.d/"}, caps: drawing},
		{names: []string{"nvidia_icd.i686.json"}, from: vulkanPaths("icd.d"), to: []string{"/etc/vulkan/icd.d/"}, caps: drawing, bits32: true},
		{names: []string{"nvidia_layers.json"}, from: vulkanPaths("implicit_layer.d"), to: []string{"/etc/vulkan/implicit_layer.d/"}, caps: drawing},
		{names: []string{"nvidia_icd_vksc.json"}, from: configPaths("vulkansc/icd.d"), to: []string{"/etc/vulkansc/icd.d/"}, caps: drawing},
		{names: []string{"nvoptix.bin"}, from: dataPaths(), to: []string{"/usr/share/nvidia/"}, caps: drawing},
		{names: []string{"nvidia-application-profiles-VERSION-rc"}, from: dataPaths(), to: []string{"/usr/share/nvidia/"}, caps: drawing},
		// Mesa's libgbm looks for drawing by this name, where the image's distribution has its modules.
		{names: []string{"libnvidia-allocator.so.VERSION"}, caps: drawing, to: []string{"/usr/lib/TRIPLE/gbm/nvidia-drm_gbm.so", "/usr/lib64/gbm/nvidia-drm_gbm.so"}},

		{names: []string{"nvidia_drv.so"}, from: xorgModulePaths("drivers"), caps: gpu.Display, to: []string{"/usr/lib/xorg/modules/drivers/", "/usr/lib64/xorg/modules/drivers/"}},
		{names: []string{"libglxserver_nvidia.so.VERSION"}, from: xorgModulePaths("extensions"), caps: gpu.Display, to: []string{"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so", "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so"}},
		{names: []string{"10-nvidia.conf"}, from: configPaths("X11/xorg.conf.d"), to: []string{"/usr/share/X11/xorg.conf.d/"}, caps: gpu.Display},
		{names: []string{"nvidia-drm-outputclass.conf"}, from: append(configPaths("X11/xorg.conf.d"), "etc/nvidia/current"), to: []string{"/usr/share/X11/xorg.conf.d/"}, caps: gpu.Display},
	}
}

func firmwarePaths() []string {
	return []string{"lib/firmware/updates/nvidia/VERSION", "lib/firmware/nvidia/VERSION", "usr/lib/firmware/nvidia/VERSION", "usr/local/nvidia/firmware/nvidia/VERSION"}
}

// configPaths is where packages put configuration that a library reads from /etc or /usr/share.
func configPaths(dir string) []string {
	return []string{"etc/" + dir, "usr/local/share/" + dir, "usr/share/" + dir, "usr/local/nvidia/share/" + dir}
}

// vulkanPaths also has the top of a driver root that was made for containers.
func vulkanPaths(dir string) []string { return append(configPaths("vulkan/"+dir), "vulkan/"+dir) }

// dataPaths of the libraries; Debian keeps some beside them.
func dataPaths() []string {
	return []string{"usr/share/nvidia", "usr/lib/nvidia/current", "usr/lib/TRIPLE/nvidia/current"}
}

// xorgModulePaths of the X server.
func xorgModulePaths(dir string) []string {
	return []string{
		"usr/lib/TRIPLE/nvidia/xorg", "usr/lib/xorg/modules/" + dir, "usr/lib/xorg/modules/updates/" + dir,
		"usr/lib64/xorg/modules/" + dir, "usr/lib64/xorg/modules/updates/" + dir, "usr/lib/nvidia/current",
		"usr/lib/TRIPLE/nvidia/current",
	}
}
