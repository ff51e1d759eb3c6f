package berth

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation"
)

// What the wall says that it takes out is understood, all of it.
func TestRemovals(t *testing.T) {
	spec := &specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_MKNOD"}}},
		Mounts:  []specs.Mount{{Destination: "/dev/x y", Source: "/dev/nvidia3", Type: "bind"}},
		Linux: &specs.Linux{
			Devices: []specs.LinuxDevice{{Path: "/dev/nvidia2", Type: "c", Major: 195, Minor: 2}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: false, Access: "rwm"}, {Allow: true, Type: "c", Major: new(int64(195)), Access: "rw"},
			}},
		},
	}
	stat := func(path string) (isolation.Number, bool) {
		return isolation.Number{Major: 195, Minor: 3}, path == "/dev/nvidia3"
	}
	notes, err := Prepare(spec, nil, Plan{Majors: []gpu.Major{{Number: 195, Name: "nvidia"}, {Number: 1, Name: "mem"}}, Stat: stat})
	if err != nil {
		t.Fatal(err)
	}
	const beyond = "an accelerator's, beyond what the lease has"
	want := []Removal{
		{Kind: "device", Name: "/dev/nvidia2", Source: "c 195:2", Why: beyond},
		{Kind: "mount", Name: "/dev/x y", Source: "/dev/nvidia3", Why: beyond},
		{Kind: "rule", Name: "allow c 195:* rw", Why: beyond},
		{Kind: "capability", Name: "CAP_MKNOD", Why: "devices come with the lease: nobody makes nodes of them inside"},
		{Kind: "note", Name: "the driver is elsewhere"},
	}
	if diff := cmp.Diff(want, Removals(append(notes, "the driver is elsewhere"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	notes, err = Prepare(spec, nil, Plan{Majors: []gpu.Major{{Number: 195, Name: "nvidia"}}, Stat: stat})
	if got := Removals(notes); err != nil || len(got) != 1 || got[0].Kind != "rule" || got[0].Name != "allow a *:* rwm" {
		t.Errorf("%+v of %q, %v", got, notes, err)
	}
}
