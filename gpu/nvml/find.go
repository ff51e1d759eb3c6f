package nvml

import (
	"os"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
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
	for _, dir := range driver.LibraryDirectories() {
		// Debian's links from dir to nvidia/current are absolute: they lead out of the driver root.
		for _, path := range []string{h.Driver(dir, "nvidia/current", library), h.Driver(dir, library)} {
			if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
				return path
			}
		}
	}
	return library
}
