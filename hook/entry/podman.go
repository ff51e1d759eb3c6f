package entry

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// MadeByPodman reports whether podman has made the spec. podman writes its name into an
// annotation, which images can overwrite under podman 4. So its other annotations count
// as well, its name in the cgroup's path, and the file by which it identifies itself to
// containers: images cannot remove these.
func MadeByPodman(spec *specs.Spec) bool {
	for key, value := range spec.Annotations {
		if key == "io.container.manager" && value == "libpod" || strings.HasPrefix(key, "io.podman.") {
			return true
		}
	}
	maker := engineOf(spec)
	return maker == "libpod" || maker != "crio" && hasContainerenv(spec)
}

// engineOf returns the engine that has made a spec, by the path of its cgroup: "libpod",
// "crio" or "docker". "other" is a path that names none, as Docker's with
// --cgroup-parent and without systemd. "" means that there is no path.
//
//	/libpod_parent/libpod-ID    machine.slice:libpod:ID
//	/docker/ID                  system.slice:docker:ID
func engineOf(spec *specs.Spec) string {
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

// hasContainerenv reports whether the container has the file by which podman and CRI-O
// identify themselves.
func hasContainerenv(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == "/run/.containerenv" })
}

// CheckPod returns an error if the container is the infrastructure container of a podman
// pod and has been given devices, which podman passes on to no other container of the
// pod.
func CheckPod(spec *specs.Spec) error {
	if !isPodInfra(spec) {
		return nil
	}
	asked, err := RequestsIn(spec)
	if err != nil {
		return err
	}
	r, ok, err := asked.Resolve()
	if err != nil || !ok {
		return err
	}
	return fmt.Errorf("request %s: the device is the pod's, and podman hands it on to none of the pod's containers: "+
		"give --device to them, and not to the pod", r)
}

// isPodInfra reports whether the container is the infrastructure container of a podman
// pod. No annotation says so (io.podman.annotations.infra.name is also on a pod's real
// containers). Either it runs podman's own program for that, or it is in a pod's cgroup
// without the annotation that names the pod's infrastructure container, which all others
// there have. A container that imitates one gains nothing, as it gets no device. It is
// not recognized in a pod without a cgroup (--share-parent=false) if it runs another
// program.
func isPodInfra(spec *specs.Spec) bool {
	if !MadeByPodman(spec) || spec.Process == nil {
		return false
	}
	return slices.Equal(spec.Process.Args, []string{"/catatonit", "-P"}) ||
		isInPodCgroup(spec) && spec.Annotations["io.kubernetes.cri-o.SandboxID"] == ""
}

// isInPodCgroup reports whether the container's cgroup is in a pod's, by podman's names:
//
//	/libpod_parent/POD/libpod-ID    machine-libpod_pod_POD.slice:libpod:ID
func isInPodCgroup(spec *specs.Spec) bool {
	if engineOf(spec) != "libpod" {
		return false
	}
	slice, _, systemd := strings.Cut(path.Base(spec.Linux.CgroupsPath), ":")
	if systemd {
		_, pod, ok := strings.Cut(strings.TrimSuffix(slice, ".slice"), "libpod_pod_")
		return ok && isID(pod)
	}
	parent := path.Dir(spec.Linux.CgroupsPath)
	return path.Dir(parent) == "/libpod_parent" && isID(path.Base(parent))
}

// isID reports whether a name is the id of a container or a pod.
func isID(name string) bool { return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == "" }
