package isolation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// ruleOf returns a rule as a spec has it, with any numbers.
func ruleOf(verb bool, kind string, major, minor *int64, access string) specs.LinuxDeviceCgroup {
	return specs.LinuxDeviceCgroup{Allow: verb, Type: kind, Major: major, Minor: minor, Access: access}
}

func number(n int64) *int64 { return &n }

const wrap = int64(1) << 32

// Rules that runtimes read differently from one another, or from berth, are refused, with a lease
// and without.
func TestAmbiguousRulesAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		rule specs.LinuxDeviceCgroup
		want string
	}{
		{"major that wraps", ruleOf(true, "c", number(195+wrap), nil, "rwm"), "major 4294967491 is no device number"},
		{"major and minor that wrap", ruleOf(true, "c", number(195+wrap), number(3+wrap), "rwm"), "major 4294967491"},
		{"minor that wraps", ruleOf(true, "c", number(10), number(3+wrap), "rwm"), "minor 4294967299 is no device number"},
		{"another any", ruleOf(true, "c", number(-2), number(3), "rwm"), "major -2 is no device number"},
		{"another any minor", ruleOf(true, "c", number(10), number(-2), "rwm"), "minor -2"},
		{"major that wraps from below", ruleOf(true, "c", number(195-wrap), nil, "rwm"), "major -4294967101"},
		{"the least", ruleOf(true, "c", number(-1<<63), nil, "rwm"), "major -9223372036854775808"},
		{"beyond the kernel's majors", ruleOf(true, "c", number(4096), nil, "rwm"), "major 4096"},
		{"beyond the kernel's minors", ruleOf(true, "c", number(10), number(1<<20), "rwm"), "minor 1048576"},
		{"type that begins well", ruleOf(true, "cx", number(10), nil, "rwm"), `type "cx" is none of a, b and c`},
		{"type of a node", ruleOf(true, "u", number(195), nil, "rwm"), `type "u"`},
		{"type of a pipe", ruleOf(true, "p", number(195), nil, "rwm"), `type "p"`},
		{"type in other letters", ruleOf(true, "C", number(195), nil, "rwm"), `type "C"`},
		{"all and more", ruleOf(true, "ax", nil, nil, "rwm"), `type "ax"`},
		{"type with an end inside", ruleOf(true, "c\x00", number(195), nil, "rwm"), `type "c\x00"`},
		{"unknown access", ruleOf(true, "c", number(10), nil, "x"), `access "x" isn't made of r, w and m`},
		{"access in other letters", ruleOf(true, "c", number(10), nil, "RWM"), `access "RWM"`},
		{"more access than the kernel reads", ruleOf(false, "c", number(10), nil, "mmmr"), `access "mmmr"`},
		{"a denial counts too", ruleOf(false, "c", number(-2), nil, "rwm"), "major -2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specOf(deny("", every, every, "rwm"))
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, tt.rule)
			wantRefused(t, spec, "config.json: linux.resources.devices[1]: "+tt.want)
		})
	}
}

func TestAmbiguousNodesAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		node specs.LinuxDevice
		want string
	}{
		{"major that wraps", specs.LinuxDevice{Path: "/dev/x", Type: "c", Major: 195 + wrap}, "major 4294967491 is no device number"},
		{"minor that wraps", specs.LinuxDevice{Path: "/dev/x", Type: "c", Major: 195, Minor: wrap}, "minor 4294967296 is no device number"},
		{"any", specs.LinuxDevice{Path: "/dev/x", Type: "c", Major: -1, Minor: 0}, "major -1"},
		{"type that begins well", specs.LinuxDevice{Path: "/dev/x", Type: "cx", Major: 195}, `type "cx" is none of c, u, b and p`},
		{"type of a rule", specs.LinuxDevice{Path: "/dev/x", Type: "a", Major: 195}, `type "a"`},
		{"no type", specs.LinuxDevice{Path: "/dev/x", Major: 195}, `type ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specOf(deny("", every, every, "rwm"))
			spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}, tt.node}
			wantRefused(t, spec, "config.json: linux.devices[1]: "+tt.want)
		})
	}
}

// TestOddCapabilitiesAreRefused: crun takes these names for CAP_SYS_ADMIN, and runc for none.
func TestOddCapabilitiesAreRefused(t *testing.T) {
	for _, name := range []string{"21", "0x15", "CAP_SYS_ADMIN x", "CAP_SYS_ADMIN,x", "CAP_SYS_ADMIN\x00"} {
		spec := specOf(deny("", every, every, "rwm"))
		spec.Process = &specs.Process{Capabilities: &specs.LinuxCapabilities{Permitted: []string{"CAP_CHOWN", name}}}
		wantRefused(t, spec, fmt.Sprintf("config.json: process.capabilities: %q is not the name of a capability", name))
		if !CanLiftDeviceRules(spec) {
			t.Errorf("%q lifts no device rules", name)
		}
	}
}

func wantRefused(t *testing.T, spec *specs.Spec, want string) {
	t.Helper()
	_, concerned := AcceleratorInSpec(spec, testHost())
	_, _, guard := RestrictDevices(spec, testHost(), nil)
	_, _, lease := RestrictDevices(spec, testHost(), leased(0))
	for name, err := range map[string]error{"AcceleratorInSpec": concerned, "RestrictDevices": guard, "RestrictDevices with a lease": lease} {
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

// Rules that engines write are accepted.
func TestRulesOfEnginesAreAccepted(t *testing.T) {
	usual := specOf()
	usual.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{
		ruleOf(false, "", nil, nil, "rwm"), ruleOf(false, "a", number(-1), number(-1), "rwm"),
		ruleOf(true, "c", number(-1), number(-1), "m"), ruleOf(true, "b", nil, nil, "m"), ruleOf(true, "c", number(1), nil, "rr"),
		ruleOf(true, "c", number(0), number(0), "r"), ruleOf(true, "b", number(4095), number(1<<20-1), "wm"), ruleOf(true, "c", number(7), nil, ""),
	}
	usual.Linux.Devices = []specs.LinuxDevice{
		{Path: "/dev/a", Type: "c", Major: 4095, Minor: 1<<20 - 1}, {Path: "/dev/b", Type: "b"}, {Path: "/dev/c", Type: "u"}, {Path: "/dev/d", Type: "p"},
	}
	for name, host := range map[string]Host{"with accelerators": testHost(), "without their drivers": {Majors: testHost().Majors[:5]}} {
		t.Run(name, func(t *testing.T) {
			if concerned, err := AcceleratorInSpec(usual, host); concerned || err != nil {
				t.Errorf("%v, %v", concerned, err)
			}
			if e, gone, err := RestrictDevices(usual, host, nil); !cmp.Equal(e, edits.Edits{}) || gone != nil || err != nil {
				t.Errorf("%+v, %v, %v", e, gone, err)
			}
		})
	}
}

// reading is how a runtime reads a rule: the narrowing of its integers, its idea of "any", and how
// it reads the type.
type reading func(specs.LinuxDeviceCgroup) (kind string, major, minor int64, access string)

// readings are those of existing runtimes, and of runtimes with similar mistakes. Numbers are
// pointers in runc, and C's int in crun; both take negative numbers for any.
func readings() map[string]reading {
	value := func(p *int64) int64 {
		if p == nil {
			return every
		}
		return *p
	}
	anyOf := func(n int64) int64 { return max(n, every) }
	cut := func(n int64) int64 { return anyOf(int64(int32(n))) } //nolint:gosec // that is the point
	ended := func(s string) string { s, _, _ = strings.Cut(s, "\x00"); return s }
	letter := func(kind string) string {
		switch {
		case kind == "" || kind[0] == 'a':
			return "a"
		case kind[0] == 'b':
			return "b"
		}
		return "c"
	}
	return map[string]reading{
		"runc": func(r specs.LinuxDeviceCgroup) (string, int64, int64, string) {
			if r.Type == "" {
				r.Type = "a"
			}
			return r.Type, anyOf(value(r.Major)), anyOf(value(r.Minor)), r.Access
		},
		"crun": func(r specs.LinuxDeviceCgroup) (string, int64, int64, string) {
			return letter(r.Type), cut(value(r.Major)), cut(value(r.Minor)), ended(r.Access)
		},
		"crun, any letter's case": func(r specs.LinuxDeviceCgroup) (string, int64, int64, string) {
			return letter(strings.ToLower(r.Type)), cut(value(r.Major)), cut(value(r.Minor)), strings.ToLower(r.Access)
		},
		"by the kernel's numbers": func(r specs.LinuxDeviceCgroup) (string, int64, int64, string) {
			major, minor := value(r.Major), value(r.Minor)
			if major >= 0 {
				major &= 1<<12 - 1
			}
			if minor >= 0 {
				minor &= 1<<20 - 1
			}
			return letter(r.Type), anyOf(major), anyOf(minor), r.Access
		},
	}
}

// No rule list that opens an accelerator by one of the readings is passed on: it is refused, or
// rewritten.
func TestUnchangedRulesOpenNoAccelerator(t *testing.T) {
	accelerators := gpu.AcceleratorMajors(testHost().Majors)
	draw := rapid.Custom(func(t *rapid.T) specs.LinuxDeviceCgroup {
		numbers := func(name string, all ...int64) *int64 {
			if rapid.Bool().Draw(t, name+" missing") {
				return nil
			}
			n := rapid.SampledFrom(all).Draw(t, name)
			return number(n + rapid.SampledFrom([]int64{0, 0, 0, wrap, -wrap, 4096, 1 << 20, -1 << 63}).Draw(t, name+" and more"))
		}
		return ruleOf(rapid.Bool().Draw(t, "allow"),
			rapid.SampledFrom([]string{"", "a", "b", "c", "c", "c", "cx", "u", "p", "C", "ax", "A", "bc", "c\x00", "\x00", "\x00c"}).Draw(t, "type"),
			numbers("major", -1, -2, 0, 1, 10, 195, 508, 511), numbers("minor", -1, -2, 0, 3),
			rapid.SampledFrom([]string{"rwm", "rwm", "r", "w", "m", "", "x", "RWM", "\x00rwm", "rwmrwm", "mmmr", "r\x00"}).Draw(t, "access"))
	})
	rapid.Check(t, func(t *rapid.T) {
		spec := specOf(deny("", every, every, "rwm"))
		rules := append(spec.Linux.Resources.Devices, rapid.SliceOfN(draw, 1, 3).Draw(t, "rules")...)
		spec.Linux.Resources.Devices = rules
		concerned, err := AcceleratorInSpec(spec, testHost())
		if concerned || err != nil {
			return
		}
		for name, read := range readings() {
			for _, r := range rules {
				kind, major, minor, access := read(r)
				opens := r.Allow && (kind == "a" || kind == "c" && (major == every || accelerators[major]) && strings.ContainsAny(access, "rw"))
				if opens {
					t.Fatalf("%s reads %+v as %s %d:%d %s", name, r, kind, major, minor, access)
				}
			}
		}
	})
}
