package entry

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// driverFile says whether NVIDIA's CDI spec has brought a mount. It is asked only where
// a hook of that spec's is in the container's spec. All of this has to be so:
//
//   - it is a bind, ro, nosuid and nodev: the options that NVIDIA's tools write;
//   - it stands where it comes from, below the driver's root: /usr/lib/libcuda.so.570.1
//     from there or from /run/nvidia/driver/usr/lib/libcuda.so.570.1;
//   - its file is one of the driver's by its name ([driverName]).
//
// Somebody's own mount can meet all three only by being one of the driver's files at
// its own place, which berth's directory of driver files has too.
func driverFile(m specs.Mount) bool {
	for _, option := range []string{"ro", "nosuid", "nodev"} {
		if !slices.Contains(m.Options, option) {
			return false
		}
	}
	bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
	place := path.Clean(m.Destination)
	at := m.Source == place || strings.HasSuffix(path.Clean(m.Source), place)
	return bind && path.IsAbs(place) && at && driverName(place)
}

// driverName says whether a path is that of a file of the driver's: of one of its
// programs, of a library with a driver's version (libcuda.so.570.86.15), of a service's
// socket, or of firmware and of settings in the system's directories, which have
// NVIDIA's name.
func driverName(file string) bool {
	dir, base := path.Split(file)
	switch base {
	case "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-imex", "nvidia-imex-ctl",
		"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvoptix.bin":
		return true
	case "socket":
		return strings.HasSuffix(dir, "/nvidia-persistenced/") || strings.HasSuffix(dir, "/nvidia-fabricmanager/")
	}
	if versioned(base) || strings.Contains(dir, "/lib/firmware/nvidia/") {
		return true
	}
	system := slices.ContainsFunc([]string{"/usr/", "/lib/", "/lib64/", "/etc/"}, func(top string) bool { return strings.HasPrefix(file, top) })
	return system && strings.Contains(base, "nvidia") && strings.Contains(base, ".")
}

// versioned says that it is a library's name with a driver's version: two numbers or
// three, the first of three digits.
func versioned(base string) bool {
	name, version, ok := strings.Cut(base, ".so.")
	parts := strings.Split(version, ".")
	if !ok || !strings.HasPrefix(name, "lib") || len(parts) < 2 || len(parts) > 3 || len(parts[0]) != 3 {
		return false
	}
	return !slices.ContainsFunc(parts, func(p string) bool { return p == "" || strings.Trim(p, "0123456789") != "" })
}
