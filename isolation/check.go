package isolation

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/isolation/devices"
)

// Runtimes disagree about rules that the specification doesn't define: one truncates a major to 32
// bits, another reads every negative number as "any", a third reads only the first letter of a type.
// A rule that berth considers irrelevant could open an accelerator in such a runtime. So ambiguous
// rules are refused, never corrected.

const (
	maxMajor = 1<<12 - 1 // of the kernel's dev_t
	maxMinor = 1<<20 - 1
)

// checkPlain returns an error that names the first ambiguous capability, device rule or node: one with an
// unknown type or access, or with an invalid device number.
func checkPlain(spec *specs.Spec) error {
	names, _ := capabilitiesOf(spec)
	for _, name := range names {
		if !isPlainCapability(name) {
			return fmt.Errorf("config.json: process.capabilities: %q is not the name of a capability", name)
		}
	}
	if spec.Linux == nil {
		return nil
	}
	for i, r := range rulesOf(spec) {
		if err := devices.Check(r); err != nil {
			return fmt.Errorf("config.json: linux.resources.devices[%d]: %w", i, err)
		}
	}
	for i, d := range spec.Linux.Devices {
		if err := checkNode(d); err != nil {
			return fmt.Errorf("config.json: linux.devices[%d]: %w", i, err)
		}
	}
	return nil
}

// isPlainCapability reports whether a capability's name consists of letters and underscores. libcap, with which crun
// reads names, also takes a number, and the first word of a text: "21" and "CAP_SYS_ADMIN x" are CAP_SYS_ADMIN.
func isPlainCapability(name string) bool {
	return strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") == ""
}

func checkNode(d specs.LinuxDevice) error {
	switch {
	case d.Type != "c" && d.Type != "u" && d.Type != "b" && d.Type != "p":
		return fmt.Errorf("type %q is none of c, u, b and p", d.Type)
	case !isWithin(d.Major, maxMajor):
		return fmt.Errorf("major %d is no device number", d.Major)
	case !isWithin(d.Minor, maxMinor):
		return fmt.Errorf("minor %d is no device number", d.Minor)
	}
	return nil
}

func isWithin(n, most int64) bool { return 0 <= n && n <= most }
