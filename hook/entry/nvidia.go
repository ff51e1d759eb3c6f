package entry

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// IsLegacyHook says whether a program of that name is NVIDIA's old hook, which brings devices
// into a container by itself. The first name is the one by which Docker calls it for
// --gpus; NVIDIA has used the others too.
func IsLegacyHook(name string) bool {
	switch path.Base(name) {
	case "nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-hook":
		return true
	}
	return false
}

// VisibleDevices is the variable in which Docker and NVIDIA's tools carry devices.
const VisibleDevices = "NVIDIA_VISIBLE_DEVICES"

// origin of a hook.
type origin uint8

const (
	otherHook origin = iota
	// legacyHook is NVIDIA's old hook: Docker's --gpus puts it there, podman's
	// directory of hooks, NVIDIA's own runtime.
	legacyHook
	// cdiHook belongs to devices of a CDI spec that NVIDIA's tools have written.
	cdiHook
	// cliHook is containerd's: ctr run --gpus.
	cliHook
)

func originOf(h specs.Hook) origin {
	switch base := path.Base(h.Path); {
	case IsLegacyHook(base):
		return legacyHook
	case base == "nvidia-cdi-hook", base == "nvidia-ctk":
		return cdiHook
	case slices.ContainsFunc(h.Args, isCLI):
		return cliHook
	}
	return otherHook
}

func isCLI(word string) bool { return path.Base(word) == "nvidia-container-cli" }

// HasNVIDIAHooks says whether NVIDIA's tools have put a hook into the spec, at any stage.
// [Strip] takes it out, with what it came with.
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

// allStages are all lists of hooks.
func allStages(h *specs.Hooks) []*[]specs.Hook {
	return append(requestStages(h), &h.CreateContainer, &h.StartContainer, &h.Poststart, &h.Poststop)
}

// addGPUFlag adds the value of a --gpus, in the words in which it comes to a hook. Docker
// doesn't tell a count from its numbers: 0,1 is --gpus 2. "void" is --gpus 0.
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

// isNoDevice says that the value of NVIDIA's variable asks for no device.
func isNoDevice(value string) bool {
	value = strings.ToLower(strings.TrimSpace(value))
	return value == "" || value == "void" || value == "none"
}

// parseCount is N if the text is 0,1,…,N-1, and else 0.
func parseCount(text string) (n int) {
	for word := range strings.SplitSeq(text, ",") {
		if word != strconv.Itoa(n) {
			return 0
		}
		n++
	}
	return n
}

// deviceFlag is the value of the last --device= among a program's words.
func deviceFlag(words []string) (value string) {
	for _, w := range words {
		if v, ok := strings.CutPrefix(w, "--device="); ok {
			value = v
		}
	}
	return value
}

// addCDIDevices adds the devices that a CDI spec of NVIDIA's has brought. They are told by their
// nodes: the names have been resolved. A node counts that has a device rule of its own,
// as those of CDI do and those of --privileged don't.
func (a *RequestSet) addCDIDevices(spec *specs.Spec, trust Trust, named DeviceResolver) error {
	if named == nil || spec.Linux == nil || !hasCDIHook(spec) {
		return nil
	}
	var nodes []specs.LinuxDevice
	for _, d := range spec.Linux.Devices {
		if d.Type == "c" && hasOwnRule(spec, d) {
			nodes = append(nodes, d)
		}
	}
	devices, err := named(nodes)
	if err != nil {
		return fmt.Errorf("CDI devices of NVIDIA's: %w", err)
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

// hasOwnRule says that a device rule speaks of this one device.
func hasOwnRule(spec *specs.Spec, d specs.LinuxDevice) bool {
	return spec.Linux.Resources != nil && slices.ContainsFunc(spec.Linux.Resources.Devices, func(r specs.LinuxDeviceCgroup) bool {
		return r.Allow && r.Type == "c" && r.Major != nil && *r.Major == d.Major && r.Minor != nil && *r.Minor == d.Minor
	})
}

// resolveIndices makes requests of the GPUs that were named by NVIDIA's indices: the very
// devices, or, where the admin has said so, as many as the indices 0 to N-1 are.
// Beside a request that names devices they are devices too.
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

// countIndices is N if the requests are for the devices 0 to N-1, in any order, and else 0.
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

// removeNVIDIA takes NVIDIA's hooks out of a spec, and with those of CDI what else their
// tools' specs bring beside nodes: the driver's files, and variables. The notes say
// what went. Nodes stay: they are the leased ones, or the wall's business.
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
	for _, program := range sortedKeys(counts) {
		notes = append(notes, fmt.Sprintf("%s of %s, which berth stands in for", countOf(counts[program], "hook"), program))
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

func sortedKeys(counts map[string]int) (names []string) {
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// isDriverFile says whether NVIDIA's CDI spec has brought a mount. It is asked only where
// a hook of that spec's is in the container's spec. All of this has to be so:
//
//   - it is a bind, ro, nosuid and nodev: the options that NVIDIA's tools write;
//   - it stands where it comes from, below the driver's root: /usr/lib/libcuda.so.570.1
//     from there or from /run/nvidia/driver/usr/lib/libcuda.so.570.1;
//   - its file is one of the driver's by its name ([driverName]).
//
// Somebody's own mount can meet all three only by being one of the driver's files at
// its own place, which berth's directory of driver files has too.
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

// isDriverFileName says whether a path is that of a file of the driver's: of one of its
// programs, of a library with a driver's version (libcuda.so.570.86.15), of a service's
// socket, or of firmware and of settings in the system's directories, which have
// NVIDIA's name.
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

// hasDriverVersion says that it is a library's name with a driver's version: two numbers or
// three, the first of three digits.
func hasDriverVersion(base string) bool {
	name, version, ok := strings.Cut(base, ".so.")
	parts := strings.Split(version, ".")
	if !ok || !strings.HasPrefix(name, "lib") || len(parts) < 2 || len(parts) > 3 || len(parts[0]) != 3 {
		return false
	}
	return !slices.ContainsFunc(parts, func(p string) bool { return p == "" || strings.Trim(p, "0123456789") != "" })
}
