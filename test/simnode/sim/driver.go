package sim

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed nvml stub
var sources embed.FS

// driverFiles are the driver's user-space files in the cache.
type driverFiles struct {
	libraries, programs string
	libraries32         string // stubs; "" if there are none
	nvml                string // our libnvidia-ml, without state
	memlock             string // see stub/memlock.c
	nvidia              bool   // not stubs
}

// library is a file of the driver: name.so.<version>, found by programs as soname.
type library struct{ name, soname string }

// libraries lists what the stub driver has. An empty soname is the file's name.
func libraries() []library {
	return []library{
		{"libcuda", "libcuda.so.1"},
		{"libcudadebugger", "libcudadebugger.so.1"},
		{"libnvcuvid", "libnvcuvid.so.1"},
		{"libnvoptix", "libnvoptix.so.1"},
		{"libnvidia-allocator", "libnvidia-allocator.so.1"},
		{"libnvidia-cfg", "libnvidia-cfg.so.1"},
		{"libnvidia-encode", "libnvidia-encode.so.1"},
		{"libnvidia-fbc", "libnvidia-fbc.so.1"},
		{"libnvidia-ngx", "libnvidia-ngx.so.1"},
		{"libnvidia-nvvm", "libnvidia-nvvm.so.4"},
		{"libnvidia-opencl", "libnvidia-opencl.so.1"},
		{"libnvidia-opticalflow", "libnvidia-opticalflow.so.1"},
		{"libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"},
		{"libnvidia-gpucomp", ""},
		{"libnvidia-rtcore", ""},
		{"libnvidia-eglcore", ""},
		{"libnvidia-glcore", ""},
		{"libnvidia-glsi", ""},
		{"libnvidia-tls", ""},
		{"libnvidia-glvkspirv", ""},
		{"libGLX_nvidia", "libGLX_nvidia.so.0"},
		{"libEGL_nvidia", "libEGL_nvidia.so.0"},
		{"libGLESv2_nvidia", "libGLESv2_nvidia.so.2"},
		{"libGLESv1_CM_nvidia", "libGLESv1_CM_nvidia.so.1"},
		{"vdpau/libvdpau_nvidia", "libvdpau_nvidia.so.1"},
	}
}

// platformLibraries have versions of their own.
func platformLibraries() map[library]string {
	return map[library]string{
		{"libnvidia-egl-gbm", "libnvidia-egl-gbm.so.1"}:         "1.1.1",
		{"libnvidia-egl-wayland", "libnvidia-egl-wayland.so.1"}: "1.1.13",
	}
}

func programs() []string {
	return []string{
		"nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
		"nvidia-imex", "nvidia-imex-ctl",
	}
}

const nvmlName, nvmlSoname = "libnvidia-ml", "libnvidia-ml.so.1"

// prepareDriver makes the driver's files in the cache.
func prepareDriver(kind, version string) (d driverFiles, err error) {
	cache, err := cacheDir()
	if err != nil {
		return d, err
	}
	if d.nvml, err = buildNVML(cache); err != nil {
		return d, err
	}
	if d.memlock, err = buildMemlock(cache); err != nil {
		return d, err
	}
	if d.libraries32, err = buildStub32(cache, version); err != nil {
		return d, err
	}
	root, err := driverDir(cache, kind, version)
	if err != nil {
		return d, err
	}
	d.nvidia = root == debianDir(cache, version)
	d.libraries, d.programs = filepath.Join(root, "lib"), filepath.Join(root, "bin")
	return d, nil
}

func driverDir(cache, kind, version string) (string, error) {
	debian := debianDir(cache, version)
	_, err := os.Stat(debian)
	switch {
	case err == nil && (kind == "debian" || kind == "auto"):
		return debian, nil
	case kind == "debian":
		return "", errors.New("NVIDIA's driver isn't in the cache: get it with simnode fetch")
	}
	return buildStub(cache, version)
}

// libraryDir returns the directory in which this machine's linker looks for libraries first.
func libraryDir() string {
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return "/usr/lib"
}

// mountDriver mounts the driver's files at their places.
func (n *Node) mountDriver(d driverFiles) error {
	n.Libraries = filepath.Join(n.DriverRoot, libraryDir())
	n.Programs = filepath.Join(n.DriverRoot, "usr/bin")
	n.NVIDIA = d.nvidia
	if n.DriverRoot != "/" {
		if err := makeRoot(n.DriverRoot); err != nil {
			return err
		}
		if err := makeDirs(n.Libraries, n.Programs); err != nil {
			return err
		}
	}
	if err := n.helpers(); err != nil {
		return err
	}
	if err := overlay("lib", n.Libraries, d.libraries); err != nil {
		return err
	}
	if err := overlay("bin", n.Programs, d.programs); err != nil {
		return err
	}
	return n.mountData(d.libraries32)
}

// makeRoot mounts a tmpfs as the driver's root, which must exist unless /run is
// above it: nothing is made on the machine itself.
func makeRoot(root string) error {
	if strings.HasPrefix(root, "/run/") {
		return makeDirs(root)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount driver root %s, which must exist or be below /run: %w", root, err)
	}
	return nil
}

// helpers adds to a bare node the programs that load modules and make nodes.
func (n Node) helpers() error {
	if !n.Bare && n.UVM {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	if err := overlay("sbin", "/usr/sbin"); err != nil {
		return err
	}
	for _, name := range loaders() {
		if err := relink(filepath.Join("/usr/sbin", name), self); err != nil {
			return err
		}
	}
	return nil
}

// writeNVML writes our library beside the other ones, followed by the present state, for containers
// that don't see the node's state.
func (n Node) writeNVML(nvml string) error {
	code, err := os.ReadFile(nvml)
	if err != nil {
		return fmt.Errorf("read NVML: %w", err)
	}
	if err := replace(filepath.Join(Dir, "nvml.so"), string(code)); err != nil {
		return err
	}
	return n.renewNVML()
}

func (n Node) renewNVML() error {
	code, err := os.ReadFile(filepath.Join(Dir, "nvml.so"))
	if err != nil {
		return fmt.Errorf("read NVML: %w", err)
	}
	state := n.nvmlState()
	name := nvmlName + ".so." + n.Driver
	content := fmt.Sprintf("%s%sSIMNODE-STATE%010d\n", code, state, len(state))
	if err := replace(filepath.Join(n.Libraries, name), content); err != nil {
		return err
	}
	for link, to := range map[string]string{nvmlSoname: name, nvmlName + ".so": nvmlSoname} {
		if err := relink(filepath.Join(n.Libraries, link), to); err != nil {
			return err
		}
	}
	return nil
}

func relink(path, to string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove link: %w", err)
	}
	if err := os.Symlink(to, path); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return nil
}
