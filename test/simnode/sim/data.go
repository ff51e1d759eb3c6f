package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// driverData lists the driver's files that are neither libraries nor programs, below
// the driver's root: what EGL, Vulkan, OpenCL and X read, and the firmware.
func (n Node) driverData() map[string]string {
	icd := func(library string) string {
		return fmt.Sprintf("{\n    \"file_format_version\" : \"1.0.0\",\n    \"ICD\" : {\n        \"library_path\" : %q\n    }\n}\n", library)
	}
	profiles := "usr/share/nvidia/nvidia-application-profiles-" + n.Driver
	files := map[string]string{
		"etc/OpenCL/vendors/nvidia.icd":                                      "libnvidia-opencl.so.1\n",
		"usr/share/glvnd/egl_vendor.d/10_nvidia.json":                        icd("libEGL_nvidia.so.0"),
		"usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json":       icd("libnvidia-egl-wayland.so.1"),
		"usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json":           icd("libnvidia-egl-gbm.so.1"),
		"usr/share/vulkan/icd.d/nvidia_icd.json":                             strings.Replace(icd("libGLX_nvidia.so.0"), "\"\n", "\",\n        \"api_version\" : \"1.3.277\"\n", 1),
		"usr/share/vulkan/implicit_layer.d/nvidia_layers.json":               "{\n    \"file_format_version\" : \"1.0.0\",\n    \"layers\" : []\n}\n",
		"usr/share/nvidia/nvoptix.bin":                                       "simulated data of OptiX\n",
		profiles + "-rc":                                                     "{}\n",
		profiles + "-key-documentation":                                      "simulated\n",
		"usr/share/X11/xorg.conf.d/10-nvidia.conf":                           "# simulated\n",
		"usr/lib/xorg/modules/drivers/nvidia_drv.so":                         "simulated X driver\n",
		"usr/lib/xorg/modules/extensions/libglxserver_nvidia.so." + n.Driver: "simulated X extension\n",
	}
	for _, chips := range []string{"ga10x", "tu10x"} {
		name := "usr/lib/firmware/nvidia/" + n.Driver + "/gsp_" + chips + ".bin"
		files[name] = "simulated firmware " + n.Driver + " of " + chips + "\n"
	}
	full := map[string]string{}
	for name, content := range files {
		full[filepath.Join(n.DriverRoot, name)] = content
	}
	return full
}

// mountData mounts the driver's other files at their places. In / that takes overlays of /usr/lib
// and /usr/share; libraries below them don't change.
func (n *Node) mountData(libraries32 string) (err error) {
	if n.DriverRoot == "/" {
		if err := overlayUsr(n.Libraries); err != nil {
			return err
		}
	} else if err := os.Symlink("usr/lib", filepath.Join(n.DriverRoot, "lib")); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("link: %w", err)
	}
	if libraries32 != "" {
		n.Libraries32 = filepath.Join(n.DriverRoot, libraryDir32())
		if err := os.CopyFS(n.Libraries32, os.DirFS(libraries32)); err != nil {
			return fmt.Errorf("copy 32-bit libraries: %w", err)
		}
	}
	return writeAll(n.driverData())
}

func overlayUsr(libraries string) error {
	if err := overlay("usrshare", "/usr/share"); err != nil {
		return err
	}
	if libraries == "/usr/lib" { // an overlay already
		return nil
	}
	putBack, err := keep([]string{libraries})
	if err != nil {
		return err
	}
	if err := overlay("usrlib", "/usr/lib"); err != nil {
		return err
	}
	if !strings.HasPrefix(libraries, "/usr/lib/") {
		return nil
	}
	return putBack()
}

// renewData writes these files by the state.
func (n Node) renewData(was Node) error {
	now := n.driverData()
	for path := range was.driverData() {
		if _, stays := now[path]; stays {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove driver's file: %w", err)
		}
	}
	return writeAll(now)
}

// libraryDir32 returns the directory in which this machine's linker looks for libraries of 32 bits,
// "" if there is none.
func libraryDir32() string {
	switch {
	case runtime.GOARCH != "amd64":
		return ""
	case strings.HasSuffix(libraryDir(), "-linux-gnu"):
		return "/usr/lib/i386-linux-gnu"
	}
	return "/usr/lib"
}

// libraries32 lists what the driver has for programs of 32 bits.
func libraries32() []library {
	all := []library{{nvmlName, nvmlSoname}}
	for _, l := range libraries() {
		switch l.name {
		case "libcudadebugger", "libnvoptix", "libnvidia-cfg", "libnvidia-ngx", "libnvidia-nvvm", "libnvidia-rtcore":
		default:
			all = append(all, l)
		}
	}
	return all
}

// buildStub32 compiles the libraries of 32 bits: they need no C library, so any compiler for this
// machine can build them. It returns "" on a machine without programs of 32 bits.
func buildStub32(cache, version string) (string, error) {
	if libraryDir32() == "" {
		return "", nil
	}
	dir, err := cached(cache, "stub32-"+version+"-"+sourceHash("stub32", fmt.Sprint(libraries32())), func(dir string) error {
		src := filepath.Join(dir, "src")
		if err := unpackSources(src); err != nil {
			return err
		}
		for _, l := range libraries32() {
			if err := buildLibrary(dir, l, version, "stub/library.c", "-m32", "-nostdlib"); err != nil {
				return err
			}
		}
		return os.RemoveAll(src)
	})
	return filepath.Join(dir, "lib"), err
}
