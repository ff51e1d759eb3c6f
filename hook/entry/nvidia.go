package entry

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// IsLegacyHook reports whether a program of that name is NVIDIA's old hook, which
// injects devices itself. Docker calls it for --gpus by the first name; NVIDIA has used
// the others.
func IsLegacyHook(name string) bool {
	switch path.Base(name) {
	case "nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-hook":
		return true
	}
	return false
}

// VisibleDevices is the variable in which Docker and NVIDIA's tools pass devices.
const VisibleDevices = "NVIDIA_VISIBLE_DEVICES"

// origin is the tool that has added a hook.
type origin uint8

const (
	otherHook origin = iota
	// legacyHook is NVIDIA's old hook, added by Docker's --gpus, by podman's directory of
	// hooks, or by NVIDIA's runtime.
	legacyHook
	// cdiHook belongs to a device of a CDI spec that NVIDIA's tools have written.
	cdiHook
	// cliHook is containerd's, added by ctr run --gpus.
	cliHook
)

func originOf(h specs.Hook) origin {
	switch base := path.Base(h.Path); {
	case IsLegacyHook(base):
		return legacyHook
	case base == "nvidia-cdi-hook", base == "nvidia-ctk":
		return cdiHook
	case slices.ContainsFunc(h.Args, isContainerCLI):
		return cliHook
	}
	return otherHook
}

func isContainerCLI(word string) bool { return path.Base(word) == "nvidia-container-cli" }

// HasNVIDIAHooks reports whether NVIDIA's tools have added a hook to the spec, at any
// stage. [StripSpec] removes it and what came with it.
func HasNVIDIAHooks(spec *specs.Spec) bool {
	return hasHook(spec, func(o origin) bool { return o != otherHook })
}

func hasCDIHook(spec *specs.Spec) bool {
	return hasHook(spec, func(o origin) bool { return o == cdiHook })
}

func hasHook(spec *specs.Spec, is func(origin) bool) bool {
	if spec.Hooks == nil {
		return false
	}
	return slices.ContainsFunc(allStages(spec.Hooks), func(list *[]specs.Hook) bool {
		return slices.ContainsFunc(*list, func(h specs.Hook) bool { return is(originOf(h)) })
	})
}

// allStages returns the lists of hooks of all stages.
func allStages(h *specs.Hooks) []*[]specs.Hook {
	return append(requestStages(h), &h.CreateContainer, &h.StartContainer, &h.Poststart, &h.Poststop)
}

// addGPUFlag adds the value of a --gpus, as Docker passes it to the hook. Docker writes a count as
// indices: --gpus 2 is "0,1", which counts as 2 unless exact is set. "void" is --gpus 0.
func (a *RequestSet) addGPUFlag(value string, exact bool) error {
	text := "device=" + value
	if n := parseCount(value); n > 0 && !exact {
		text = strconv.Itoa(n)
	}
	if isNoDevice(value) {
		return nil
	}
	return a.addRequest("--gpus", text)
}

// isNoDevice reports whether a value of NVIDIA's variable asks for no device.
func isNoDevice(value string) bool {
	value = strings.ToLower(strings.TrimSpace(value))
	return value == "" || value == "void" || value == "none"
}

// parseCount returns N if the text is "0,1,…,N-1", and otherwise 0.
func parseCount(text string) (n int) {
	for word := range strings.SplitSeq(text, ",") {
		if word != strconv.Itoa(n) {
			return 0
		}
		n++
	}
	return n
}

// deviceFlag returns the value of the last --device= among a program's arguments.
func deviceFlag(words []string) (value string) {
	for _, w := range words {
		if v, ok := strings.CutPrefix(w, "--device="); ok {
			value = v
		}
	}
	return value
}

// addCDIDevices adds the devices that a CDI spec of NVIDIA's has added. The spec has
// only their nodes: the engine has resolved the names. A node counts if it has a device
// rule of its own, as nodes of CDI devices do; those of --privileged do not.
func (a *RequestSet) addCDIDevices(spec *specs.Spec, trust Trust, resolve DeviceResolver) error {
	if resolve == nil || spec.Linux == nil || !hasCDIHook(spec) {
		return nil
	}
	var nodes []specs.LinuxDevice
	for _, d := range spec.Linux.Devices {
		if d.Type == "c" && hasOwnRule(spec, d) {
			nodes = append(nodes, d)
		}
	}
	devices, err := resolve(nodes)
	if err != nil {
		return fmt.Errorf("NVIDIA's CDI devices: %w", err)
	}
	whole := !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.Parent != "" })
	for _, d := range devices {
		if trust.CountIndices && whole {
			a.Indices = append(a.Indices, "device="+d.Index)
		} else {
			a.Requests = append(a.Requests, d.UUID)
		}
	}
	return nil
}

// hasOwnRule reports whether a device rule allows exactly this device.
func hasOwnRule(spec *specs.Spec, d specs.LinuxDevice) bool {
	return spec.Linux.Resources != nil && slices.ContainsFunc(spec.Linux.Resources.Devices, func(r specs.LinuxDeviceCgroup) bool {
		return r.Allow && r.Type == "c" && r.Major != nil && *r.Major == d.Major && r.Minor != nil && *r.Minor == d.Minor
	})
}

// resolveIndices turns Indices into Requests: for these very devices, or, if trust
// allows it, for as many devices as the indices 0 to N-1 are. Beside a request that
// names devices, indices name devices too.
func (a *RequestSet) resolveIndices(trust Trust) {
	names := slices.ContainsFunc(a.Requests, func(text string) bool {
		r, err := request.Parse(text)
		return err == nil && r.IDs() != nil
	})
	more := a.Indices
	if n := countIndices(a.Indices); n > 0 && trust.CountIndices && !names {
		more = []string{strconv.Itoa(n)}
	}
	a.Requests, a.Indices = slices.Concat(a.Requests, more), nil
}

// countIndices returns N if the requests are for the devices 0 to N-1, in any order, and
// otherwise 0.
func countIndices(requests []string) int {
	var all []int
	for _, text := range requests {
		i, err := strconv.Atoi(strings.TrimPrefix(text, "device="))
		if err != nil {
			return 0
		}
		all = append(all, i)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if n := len(all); n > 0 && all[0] == 0 && all[n-1] == n-1 {
		return n
	}
	return 0
}

// removeNVIDIA removes NVIDIA's hooks from a spec, and with CDI hooks what else NVIDIA's
// CDI specs add besides nodes: mounts of driver files, and variables. The notes describe
// what was removed. Nodes stay: they are leased, or device isolation removes them.
func removeNVIDIA(spec *specs.Spec) (notes []string) {
	if !HasNVIDIAHooks(spec) {
		return nil
	}
	fromCDI := hasCDIHook(spec)
	counts := map[string]int{}
	hooks := *spec.Hooks
	for _, list := range allStages(&hooks) {
		*list = slices.DeleteFunc(slices.Clone(*list), func(h specs.Hook) bool {
			theirs := originOf(h) != otherHook
			if theirs {
				counts[h.Path]++
			}
			return theirs
		})
	}
	spec.Hooks = &hooks
	for _, program := range slices.Sorted(maps.Keys(counts)) {
		notes = append(notes, fmt.Sprintf("%s of %s, which berth replaces", countOf(counts[program], "hook"), program))
	}
	if !fromCDI {
		return notes
	}
	before := len(spec.Mounts)
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), isDriverFile)
	if n := before - len(spec.Mounts); n > 0 {
		notes = append(notes, countOf(n, "mount")+" of driver files by NVIDIA's CDI spec")
	}
	if p := spec.Process; p != nil {
		p.Env = slices.DeleteFunc(slices.Clone(p.Env), func(entry string) bool { return strings.HasPrefix(entry, "NVIDIA_CTK_") })
	}
	return notes
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// isDriverFile reports whether NVIDIA's CDI spec has added a mount. It is called only if
// the container's spec has a hook of that CDI spec. All of these have to hold:
//
//   - it is a bind, ro, nosuid and nodev: the options that NVIDIA's tools write;
//   - its destination is its source below the driver's root: /usr/lib/libcuda.so.570.1
//     from there or from /run/nvidia/driver/usr/lib/libcuda.so.570.1;
//   - its file is one of the driver's by its name ([isDriverFileName]).
//
// A user's own mount meets all three only if it is one of the driver's files at its own
// place, which berth's directory of driver files has too.
func isDriverFile(m specs.Mount) bool {
	for _, option := range []string{"ro", "nosuid", "nodev"} {
		if !slices.Contains(m.Options, option) {
			return false
		}
	}
	bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
	place := path.Clean(m.Destination)
	at := m.Source == place || strings.HasSuffix(path.Clean(m.Source), place)
	return bind && path.IsAbs(place) && at && isDriverFileName(place)
}

// isDriverFileName reports whether a path is that of a driver file: one of its programs,
// a library with a driver's version (libcuda.so.570.86.15), the socket of a service, or
// firmware or a configuration file with NVIDIA's name in a directory of the system.
func isDriverFileName(file string) bool {
	dir, base := path.Split(file)
	switch base {
	case "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-imex", "nvidia-imex-ctl",
		"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvoptix.bin":
		return true
	case "socket":
		return strings.HasSuffix(dir, "/nvidia-persistenced/") || strings.HasSuffix(dir, "/nvidia-fabricmanager/")
	}
	if hasDriverVersion(base) || strings.Contains(dir, "/lib/firmware/nvidia/") {
		return true
	}
	system := slices.ContainsFunc([]string{"/usr/", "/lib/", "/lib64/", "/etc/"}, func(top string) bool { return strings.HasPrefix(file, top) })
	return system && strings.Contains(base, "nvidia") && strings.Contains(base, ".")
}

// hasDriverVersion reports whether a name is that of a library with a driver's version:
// two or three numbers, the first of three digits.
func hasDriverVersion(base string) bool {
	name, version, ok := strings.Cut(base, ".so.")
	parts := strings.Split(version, ".")
	if !ok || !strings.HasPrefix(name, "lib") || len(parts) < 2 || len(parts) > 3 || len(parts[0]) != 3 {
		return false
	}
	return !slices.ContainsFunc(parts, func(p string) bool { return p == "" || strings.Trim(p, "0123456789") != "" })
}
