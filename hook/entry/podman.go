package entry

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// podman says whether podman has made the spec. It writes its name into an annotation,
// but images can write that one too under podman 4, which copies theirs. What they can't
// do away with counts as well: its other annotations, its name in the cgroup's, and the
// file by which it tells containers of itself.
func podman(spec *specs.Spec) bool {
	for key, value := range spec.Annotations {
		if key == "io.container.manager" && value == "libpod" || strings.HasPrefix(key, "io.podman.") {
			return true
		}
	}
	name := ""
	if spec.Linux != nil {
		name = spec.Linux.CgroupsPath
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			name = name[i+1:]
		}
	}
	if strings.HasPrefix(name, "libpod-") || strings.Contains(name, ":libpod:") {
		return true
	}
	crio := strings.HasPrefix(name, "crio-") || strings.Contains(name, ":crio:")
	return !crio && telling(spec)
}

// telling says that the container is told who has made it, in the way of podman and CRI-O.
func telling(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == "/run/.containerenv" })
}
