package spec

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
)

func TestSpare(t *testing.T) {
	rule := func(allow bool, access string, numbers ...int64) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{Allow: allow, Type: "c", Access: access}
		for i := range numbers {
			if i == 0 {
				r.Major = &numbers[i]
			} else {
				r.Minor = &numbers[i]
			}
		}
		return r
	}
	all := specs.LinuxDeviceCgroup{Access: "rwm"}
	usual := linuxResources(Resources{}).Devices
	for _, tt := range []struct {
		name       string
		have, want []specs.LinuxDeviceCgroup
	}{
		{"what every container has", slices.Clone(usual), []specs.LinuxDeviceCgroup{all}},
		{"a device", append(slices.Clone(usual), rule(true, "rw", 195, 0)), []specs.LinuxDeviceCgroup{all, rule(true, "rw", 195, 0)}},
		{"less of one", []specs.LinuxDeviceCgroup{all, rule(true, "r", 1, 3)}, []specs.LinuxDeviceCgroup{all, rule(true, "r", 1, 3)}},
		{"more than one", []specs.LinuxDeviceCgroup{all, rule(true, "rwm", 1)}, []specs.LinuxDeviceCgroup{all, rule(true, "rwm", 1)}},
		{"one that is denied", []specs.LinuxDeviceCgroup{all, rule(false, "rwm", 1, 3)}, []specs.LinuxDeviceCgroup{all, rule(false, "rwm", 1, 3)}},
		{"terminals", []specs.LinuxDeviceCgroup{all, rule(true, "rwm", 136)}, []specs.LinuxDeviceCgroup{all}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: tt.have}}}
			RemoveCrunDefaults(spec)
			if diff := cmp.Diff(tt.want, spec.Linux.Resources.Devices); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<20).Draw(t, "n")
		unit := rapid.SampledFrom([]string{"", "b", "k", "K", "kb", "KiB", "m", "g"}).Draw(t, "unit")
		shift := map[string]int{"": 0, "b": 0, "k": 10, "m": 20, "g": 30}[strings.ToLower(strings.TrimRight(strings.ToLower(unit), "ib"))]
		got, err := ParseSize(strconv.FormatInt(n, 10) + unit)
		if err != nil || got != n<<shift {
			t.Fatalf("%d%s is %d (%v)", n, unit, got, err)
		}
	})
}
