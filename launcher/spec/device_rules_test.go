package spec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
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
	for _, tt := range []struct {
		name       string
		have, want []specs.LinuxDeviceCgroup
	}{
		{"what every container has", deviceRules(), []specs.LinuxDeviceCgroup{all}},
		{"a device", append(deviceRules(), rule(true, "rw", 195, 0)), []specs.LinuxDeviceCgroup{all, rule(true, "rw", 195, 0)}},
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
