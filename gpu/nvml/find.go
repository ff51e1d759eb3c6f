package nvml

import (
	"os"
	"runtime"
	"strings"

	"github.com/berth-gpu/berth/gpu"
)

const soname = "libnvidia-ml.so.1"

// Find says which library to load: library itself if it is a path; else the one
// of that name (libnvidia-ml.so.1 for "") below the driver root, if the host has
// a driver root and the library is there; else the bare name, for the dynamic loader.
func Find(library string, h gpu.Host) string {
	if strings.Contains(library, "/") {
		return library
	}
	if library == "" {
		library = soname
	}
	if h.DriverRoot == "" || h.DriverRoot == "/" {
		return library
	}
	for _, dir := range libraryDirectories(runtime.GOARCH) {
		path := h.Driver(dir, library)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
			return path
		}
	}
	return library
}

// libraryDirectories are where distributions and installers put the driver's libraries.
func libraryDirectories(arch string) []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	return []string{
		"usr/lib/" + triplet + "/nvidia/current", "usr/lib/" + triplet, "usr/lib64", "usr/lib",
		"lib64", "lib/" + triplet, "usr/local/nvidia/lib64", "lib",
	}
}
