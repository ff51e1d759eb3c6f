package wrapper

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// newOwner returns the owner of the container's lease: this process, which execs the
// runtime. The ledger fills in the proof that it lives. A container whose cgroup is
// unknown is an error, because processes that outlive the container's init would not
// count as its.
func (o Options) newOwner(c call, rt Runtime, spec *specs.Spec) (ledger.Owner, error) {
	dir := absolutePath(cmp.Or(c.bundle, "."))
	place, err := o.predictCgroup(c, rt, spec)
	if err != nil {
		return ledger.Owner{}, err
	}
	engine := callingEngine(dir, absolutePath(c.root), spec, parentName())
	return ledger.Owner{
		EntryPoint:  engine,
		Container:   c.id,
		Name:        containerName(engine, spec.Annotations),
		Bundle:      dir,
		UID:         os.Getuid(),
		Command:     bundle.CommandLine(spec),
		Cgroup:      place,
		PIDFile:     absolutePath(c.pidFile),
		RuntimeRoot: absolutePath(rt.stateDir(c)),
		Runtime:     rt.Name,
	}, nil
}

// callingEngine returns the engine that calls berth-runtime, as far as the bundle, the
// runtime's state directory, the spec and the name of the parent process show it.
func callingEngine(bundle, root string, spec *specs.Spec, parent string) string {
	before, after, isTask := strings.Cut(bundle, "/io.containerd.runtime.v2.task/")
	namespace, _, _ := strings.Cut(after, "/")
	switch {
	case isTask && isOfDocker(before, namespace, root):
		return "docker"
	case isTask && namespace != "":
		return "containerd"
	case entry.MadeByPodman(spec):
		return "podman"
	case spec.Annotations["io.container.manager"] == "cri-o":
		return "cri-o"
	case parent == "conmon":
		return "podman"
	}
	return "runtime"
}

// isOfDocker reports whether a task of containerd is a container of docker's. dockerd calls its namespace
// moby, or moby-UID.GID with userns-remap, unless --containerd-namespace names another. The containerd that
// dockerd starts has its state in EXEC-ROOT/containerd/daemon, and runtimes have theirs in
// EXEC-ROOT/runtime-NAME/NAMESPACE, also under a containerd that was there before.
func isOfDocker(state, namespace, root string) bool {
	return namespace == "moby" || strings.HasPrefix(namespace, "moby-") || strings.HasSuffix(state, "/containerd/daemon") ||
		namespace != "" && filepath.Base(root) == namespace && strings.HasPrefix(filepath.Base(filepath.Dir(root)), "runtime-")
}

// containerName returns the name under which the engine's user knows the container, ""
// if the engine does not pass it on. Annotations of docker's and podman's containers are chosen by
// their users, and those of podman 4 by images too.
func containerName(engine string, annotations map[string]string) string {
	if engine == "docker" || engine == "podman" {
		return ""
	}
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
