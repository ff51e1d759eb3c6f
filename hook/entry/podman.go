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
	maker := makerOf(spec)
	return maker == "libpod" || maker != "crio" && telling(spec)
}

// makerOf reads who has made a spec from the path of its cgroup: "libpod", "crio" or
// "docker". "other" has a name that says nothing, as Docker's have with --cgroup-parent
// and without systemd; "" has none.
//
//	/libpod_parent/libpod-ID    machine.slice:libpod:ID
//	/docker/ID                  system.slice:docker:ID
func makerOf(spec *specs.Spec) string {
	if spec.Linux == nil || spec.Linux.CgroupsPath == "" {
		return ""
	}
	place, name := path.Split(spec.Linux.CgroupsPath)
	for _, maker := range []string{"libpod", "crio"} {
		if strings.HasPrefix(name, maker+"-") || strings.Contains(name, ":"+maker+":") {
			return maker
		}
	}
	if place == "/docker/" || strings.Contains(name, ":docker:") {
		return "docker"
	}
	return "other"
}

// telling says that the container is told who has made it, in the way of podman and CRI-O.
func telling(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == "/run/.containerenv" })
}
