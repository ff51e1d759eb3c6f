package entry

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// madeByPodman says whether podman has made the spec. It writes its name into an annotation,
// but images can write that one too under podman 4, which copies theirs. What they can't
// do away with counts as well: its other annotations, its name in the cgroup's, and the
// file by which it tells containers of itself.
func madeByPodman(spec *specs.Spec) bool {
	for key, value := range spec.Annotations {
		if key == "io.container.manager" && value == "libpod" || strings.HasPrefix(key, "io.podman.") {
			return true
		}
	}
	maker := makerOf(spec)
	return maker == "libpod" || maker != "crio" && hasContainerenv(spec)
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

// hasContainerenv says that the container is told who has made it, in the way of podman and CRI-O.
func hasContainerenv(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == "/run/.containerenv" })
}

// CheckPod is an error if the container only holds a pod of podman's, and has been given
// the pod's devices, which podman hands on to no other.
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

// isPodInfra says that podman has made the container for a pod and not for what is in it.
// No annotation says so (io.podman.annotations.infra.name is also on a pod's real ones).
// Either it runs podman's own program for that, or it is in a pod's cgroup, and hasn't
// been told which container holds the pod, as all others in there have. Who makes a
// container look like one gains nothing: it gets no device. A pod without a cgroup
// (--share-parent=false) that runs another program isn't told.
func isPodInfra(spec *specs.Spec) bool {
	if !madeByPodman(spec) || spec.Process == nil {
		return false
	}
	return slices.Equal(spec.Process.Args, []string{"/catatonit", "-P"}) ||
		isInPodCgroup(spec) && spec.Annotations["io.kubernetes.cri-o.SandboxID"] == ""
}

// isInPodCgroup says that the container's cgroup is in a pod's, by the name that podman gives it:
//
//	/libpod_parent/POD/libpod-ID    machine-libpod_pod_POD.slice:libpod:ID
func isInPodCgroup(spec *specs.Spec) bool {
	if makerOf(spec) != "libpod" {
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

// isID says that a name is a container's or a pod's.
func isID(name string) bool { return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == "" }
