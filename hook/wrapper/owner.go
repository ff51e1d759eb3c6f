package wrapper

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// newOwner says who asks: this process, which stays itself when it becomes the
// runtime. What proves that it lives is the ledger's to fill in. A container whose
// cgroup can't be told is an error: processes that outlive its first one would
// count for nothing.
func (o Options) newOwner(c call, rt Runtime, spec *specs.Spec) (ledger.Owner, error) {
	bundle := absolutePath(cmp.Or(c.bundle, "."))
	place, err := o.predictCgroup(c, rt, spec)
	if err != nil {
		return ledger.Owner{}, err
	}
	return ledger.Owner{
		Door:        callingEngine(bundle, spec.Annotations, parentName()),
		Container:   c.id,
		Name:        containerName(spec.Annotations),
		Bundle:      bundle,
		UID:         os.Getuid(),
		Command:     commandLine(spec),
		Cgroup:      place,
		PIDFile:     absolutePath(c.pidFile),
		RuntimeRoot: absolutePath(rt.stateDir(c)),
		Runtime:     rt.Name,
	}, nil
}

// callingEngine tells which engine calls, as far as its traces show.
func callingEngine(bundle string, annotations map[string]string, parent string) string {
	namespace := ""
	if _, after, ok := strings.Cut(bundle, "/io.containerd.runtime.v2.task/"); ok {
		namespace, _, _ = strings.Cut(after, "/")
	}
	switch {
	case namespace == "moby":
		return "docker"
	case namespace != "":
		return "containerd"
	case annotations["io.container.manager"] == "libpod":
		return "podman"
	case annotations["io.container.manager"] == "cri-o":
		return "cri-o"
	case parent == "conmon":
		return "podman"
	}
	return "runtime"
}

// containerName is what people call the container, where the engine says so.
func containerName(annotations map[string]string) string {
	get := func(key string) string { return annotations[key] }
	parts := []string{
		get("io.kubernetes.cri.sandbox-namespace"), get("io.kubernetes.cri.sandbox-name"),
		get("io.kubernetes.cri.container-name"),
	}
	if parts[2] != "" {
		return strings.TrimLeft(strings.Join(parts, "/"), "/")
	}
	return cmp.Or(get("io.kubernetes.cri-o.Name"), get("nerdctl/name"), get("berth/name"))
}

func commandLine(spec *specs.Spec) string {
	if spec.Process == nil {
		return ""
	}
	return strings.Join(spec.Process.Args, " ")
}

func parentName() string {
	comm, err := smallfile.String("/proc/" + strconv.Itoa(os.Getppid()) + "/comm")
	if err != nil {
		return "" // in another pid namespace, or gone: then nothing is known
	}
	return comm
}

func absolutePath(path string) string {
	if path == "" {
		return ""
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	return abs
}
