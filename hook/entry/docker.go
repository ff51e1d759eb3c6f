package entry

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// addGPUFlags adds what the user has told an engine by --gpus. told says that the flag was
// there, --gpus 0 too.
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

// isDockerFlag says that the hook stands for docker run --gpus. Docker looks the program up
// in the daemon's PATH and hands the daemon's environment on, so that the entry has
// the PATH in which it was found. Those of others say nothing of what a user wants,
// for they are in each container's spec, or in all whose image sets NVIDIA's variable:
// podman's and CRI-O's directories of hooks write the PATH too, NVIDIA's runtime none.
//
// Whose spec it is the cgroup's name says: what else tells podman and Kubernetes, Docker's
// users can write as well, and must not lose what they have asked for.
func isDockerFlag(spec *specs.Spec, h specs.Hook) bool {
	if originOf(h) != legacyHook || !slices.ContainsFunc(h.Env, func(entry string) bool { return pathListFinds(entry, h.Path) }) {
		return false
	}
	kubernetes := spec.Annotations["io.kubernetes.cri.container-type"] != ""
	switch makerOf(spec) {
	case "docker":
		return true
	case "libpod", "crio":
		return false
	case "": // podman without cgroups, for one
		return !kubernetes && !madeByPodman(spec) && !hasContainerenv(spec) && spec.Annotations["io.container.manager"] == ""
	}
	return !kubernetes
}

// pathListFinds says that an entry of an environment is a PATH in which a program is.
func pathListFinds(entry, program string) bool {
	list, ok := strings.CutPrefix(entry, "PATH=")
	return ok && slices.ContainsFunc(strings.Split(list, ":"), func(dir string) bool {
		return path.IsAbs(dir) && path.Clean(dir) == path.Dir(path.Clean(program))
	})
}

// addDockerFlags reads as many requests as Docker has put hooks in: each comes with a variable
// after those of the image and the user, which stay.
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

// isOldDocker says that the hook is of a Docker before 25, which knows no CDI. Newer ones give
// themselves, and so their hooks, variables by which they can be traced.
func isOldDocker(h specs.Hook) bool {
	return !slices.ContainsFunc(h.Env, func(entry string) bool { return strings.HasPrefix(entry, "OTEL_") })
}

// dockerVariables is the end of an environment that an old Docker can have written for so many
// flags: for each the devices, unless it is --gpus 0, and the capabilities, if it names
// any. Nothing comes after that. (Later ones write "void" for --gpus 0, and CDI's
// variables can come last.)
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

// areDockerCapabilities says that Docker takes all of the capabilities for --gpus: it refuses
// others, and "all", which images have.
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
