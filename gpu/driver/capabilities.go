package driver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Capability is one right that the driver hands out by means of a device node,
// /dev/nvidia-caps/nvidia-capMINOR.
type Capability struct {
	// Name is the path below /proc/driver/nvidia/capabilities: "mig/config",
	// "gpu0/mig/gi1", "gpu0/mig/gi1/ci0". The number after gpu is the GPU's minor.
	Name  string
	Minor int
	Files DeviceFiles
}

// GI names the capability of a GPU instance.
func GI(minor, gi int) string { return fmt.Sprintf("gpu%d/mig/gi%d", minor, gi) }

// CI names the capability of a compute instance.
func CI(minor, gi, ci int) string { return fmt.Sprintf("%s/ci%d", GI(minor, gi), ci) }

// Capabilities lists the capabilities that exist now: the management ones, and
// those of each MIG instance, in the order of [Layout]. Minors come from the
// access file of each, or from mig-minors where that file isn't there.
func Capabilities(h gpu.Host) ([]Capability, error) {
	names, err := capabilityNames(h)
	if err != nil || names == nil {
		return nil, err
	}
	minors, err := migMinors(h)
	if err != nil {
		return nil, err
	}
	var caps []Capability
	for _, name := range names {
		c, ok, err := readCapability(h, name, minors)
		if err != nil {
			return nil, err
		}
		if ok {
			caps = append(caps, c)
		}
	}
	return caps, nil
}

func capabilityNames(h gpu.Host) ([]string, error) {
	layout, err := Layout(h)
	if err != nil {
		return nil, err
	}
	names := []string{"mig/config", "mig/monitor"}
	for _, g := range layout {
		for _, i := range g.Instances {
			names = append(names, GI(g.Minor, i.GI))
			for _, ci := range i.CIs {
				names = append(names, CI(g.Minor, i.GI, ci))
			}
		}
	}
	return names, nil
}

func readCapability(h gpu.Host, name string, minors map[string]int) (Capability, bool, error) {
	path := h.ProcPath("driver/nvidia/capabilities", name)
	if !strings.HasPrefix(name, "mig/") {
		path += "/access"
	}
	text, err := smallfile.Read(path, 4096)
	if errors.Is(err, fs.ErrNotExist) {
		minor, ok := minors[name]
		return Capability{Name: name, Minor: minor, Files: defaultDeviceFiles()}, ok, nil
	}
	if err != nil {
		return Capability{}, false, err
	}
	fields, err := parseFields(string(text))
	if err != nil {
		return Capability{}, false, fmt.Errorf("%s: %w", path, err)
	}
	minor, ok := fields["DeviceFileMinor"]
	if !ok || minor > maxMinor {
		return Capability{}, false, fmt.Errorf("%s: no minor of a device file", path)
	}
	return Capability{Name: name, Minor: int(minor), Files: deviceFiles(fields)}, true, nil
}

// maxMinor is the kernel's: minors have 20 bits.
const maxMinor = 1<<20 - 1

// migMinors reads /proc/driver/nvidia-caps/mig-minors, a table of every minor
// that an instance could have, whether it exists or not.
func migMinors(h gpu.Host) (map[string]int, error) {
	path := h.ProcPath("driver/nvidia-caps/mig-minors")
	data, err := smallfile.Read(path, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	minors, err := parseMinors(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return minors, nil
}

// parseMinors reads lines as "gpu0/gi1/ci0/access 31" and "config 1" into the
// names of [Capability].
func parseMinors(r io.Reader) (map[string]int, error) {
	minors := map[string]int{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		name, number, _ := strings.Cut(line, " ")
		n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32)
		if err != nil || n > maxMinor || name == "" {
			return nil, fmt.Errorf("parse line %q of MIG minors: want a name and a minor", line)
		}
		minors[capabilityName(name)] = int(n)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read MIG minors: %w", err)
	}
	return minors, nil
}

func capabilityName(name string) string {
	name = strings.TrimSuffix(name, "/access")
	first, rest, found := strings.Cut(name, "/")
	if !found {
		return "mig/" + name
	}
	return first + "/mig/" + rest
}
