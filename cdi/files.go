package cdi

import (
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
)

// Target is where the driver directory appears in a container: CUDA images have
// its bin and lib64 in PATH and LD_LIBRARY_PATH.
const Target = "/usr/local/nvidia"

// OtherTarget is used where an image has files of its own in [Target].
const OtherTarget = "/usr/local/berth/nvidia"

// Files says how the driver's files come into a container: the directory bound
// read-only at target, nvidia-smi also in /usr/bin, where people look for it, and
// each file that has a place of its own (firmware, what EGL, Vulkan and OpenCL read)
// there.
func Files(dir driver.Dir, target string) edits.Edits {
	e := edits.Edits{Mounts: []specs.Mount{readOnlyBind(dir.Path, target)}}
	for _, name := range dir.Programs {
		if !isTyped(name) {
			continue // the others are in target's bin
		}
		e.Mounts = append(e.Mounts, readOnlyBind(path.Join(dir.Path, "bin", name), path.Join("/usr/bin", name)))
	}
	for _, f := range dir.Extras {
		e.Mounts = append(e.Mounts, bindView(f.Source, f.Destination))
	}
	return e
}

// Programs says where the programs of the directory are in a container that
// [Files] was applied to, whichever target it has, and where each is on the host.
func Programs(dir driver.Dir) map[string]string {
	programs := make(map[string]string)
	for _, name := range dir.Programs {
		file := path.Join(dir.Path, "bin", name)
		programs[path.Join(Target, "bin", name)] = file
		programs[path.Join(OtherTarget, "bin", name)] = file
		if isTyped(name) {
			programs[path.Join("/usr/bin", name)] = file
		}
	}
	return programs
}

// isTyped says that people look for the program in /usr/bin.
func isTyped(name string) bool { return name == "nvidia-smi" }

func readOnlyBind(source, destination string) specs.Mount {
	return specs.Mount{
		Destination: destination, Type: "bind", Source: source,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "rprivate"},
	}
}
