package entry

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// addGPUFlags adds the requests that a user has made by --gpus. told means that there was
// such a flag of Docker's, --gpus 0 included.
func (a *RequestSet) addGPUFlags(spec *specs.Spec) (told bool, err error) {
	if spec.Hooks == nil {
		return false, nil
	}
	var hooks []specs.Hook
	for _, list := range requestStages(spec.Hooks) {
		for _, h := range *list {
			switch {
			case originOf(h) == cliHook:
				if err := a.addGPUFlag(deviceFlag(h.Args), true); err != nil {
					return false, err
				}
			case isDockerFlag(spec, h):
				hooks = append(hooks, h)
			}
		}
	}
	return len(hooks) > 0, a.addDockerFlags(spec, hooks)
}

// isDockerFlag reports whether a hook stands for docker run --gpus. Docker finds the
// program in the daemon's PATH and passes the daemon's environment on, so the entry has
// the PATH in which the program is. Equal hooks of others are no request, as they are in
// every spec, or in each whose image sets NVIDIA's variable: the hook directories of
// podman and CRI-O set a PATH too, NVIDIA's runtime none.
//
// The cgroup's name decides who has made the spec. Docker's users can forge the other
// signs of podman and Kubernetes, and would lose their own --gpus.
func isDockerFlag(spec *specs.Spec, h specs.Hook) bool {
	if originOf(h) != legacyHook || !slices.ContainsFunc(h.Env, func(entry string) bool { return pathListFinds(entry, h.Path) }) {
		return false
	}
	kubernetes := spec.Annotations["io.kubernetes.cri.container-type"] != ""
	switch engineOf(spec) {
	case "docker":
		return true
	case "libpod", "crio":
		return false
	case "": // podman without cgroups, for example
		return !kubernetes && !MadeByPodman(spec) && !hasContainerenv(spec) && spec.Annotations["io.container.manager"] == ""
	}
	return !kubernetes
}

// pathListFinds reports whether an environment entry is a PATH in which the program is
// found.
func pathListFinds(entry, program string) bool {
	list, ok := strings.CutPrefix(entry, "PATH=")
	return ok && slices.ContainsFunc(strings.Split(list, ":"), func(dir string) bool {
		return path.IsAbs(dir) && path.Clean(dir) == path.Dir(path.Clean(program))
	})
}

// addDockerFlags adds one request per hook of Docker's. For each --gpus, Docker appends
// a variable to the environment; those of the image and the user stay before them.
func (a *RequestSet) addDockerFlags(spec *specs.Spec, hooks []specs.Hook) error {
	if spec.Process == nil || len(hooks) == 0 {
		return nil
	}
	env, count := spec.Process.Env, len(hooks)
	if isOldDocker(hooks[0]) && !hasCDIHook(spec) {
		env = dockerVariables(env, count)
	}
	for _, entry := range slices.Backward(env) {
		value, ok := strings.CutPrefix(entry, VisibleDevices+"=")
		if !ok || count == 0 {
			continue
		}
		count--
		if isNoDevice(value) && hasCDIHook(spec) {
			return fmt.Errorf("--gpus beside devices of NVIDIA's CDI spec, which writes over it (%s=%s): ask by one of the two", VisibleDevices, printable(value))
		}
		if err := a.addGPUFlag(value, false); err != nil {
			return err
		}
	}
	return nil
}

// isOldDocker reports whether the hook is of a Docker before 25, which knows no CDI.
// Newer ones pass OpenTelemetry variables to their hooks.
func isOldDocker(h specs.Hook) bool {
	return !slices.ContainsFunc(h.Env, func(entry string) bool { return strings.HasPrefix(entry, "OTEL_") })
}

// dockerVariables returns the end of an environment, as far as an old Docker can have
// written it for so many flags: for each flag the devices, unless it is --gpus 0, and
// the capabilities, if the flag names any. Nothing follows them. (Newer ones write
// "void" for --gpus 0, and variables of CDI devices can follow.)
func dockerVariables(env []string, flags int) []string {
	first := len(env)
	for first > 0 && flags > 0 {
		entry := env[first-1]
		capabilities, ok := strings.CutPrefix(entry, "NVIDIA_DRIVER_CAPABILITIES=")
		switch {
		case strings.HasPrefix(entry, VisibleDevices+"="):
			flags--
		case !ok || !areDockerCapabilities(capabilities):
			return env[first:]
		}
		first--
	}
	return env[first:]
}

// areDockerCapabilities reports whether Docker accepts all these capabilities in --gpus.
// It refuses others, among them "all", which images set.
func areDockerCapabilities(capabilities string) bool {
	for word := range strings.SplitSeq(capabilities, ",") {
		switch word {
		case "compute", "compat32", "graphics", "utility", "video", "display":
		default:
			return false
		}
	}
	return true
}
