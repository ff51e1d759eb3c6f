package isolation_test

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation"
)

// A privileged container that holds the first GPU of its host.
func ExampleRestrictDevices() {
	spec := &specs.Spec{Linux: &specs.Linux{
		Devices: []specs.LinuxDevice{
			{Path: "/dev/null", Type: "c", Major: 1, Minor: 3},
			{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0},
			{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1},
		},
		Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
	}}
	host := isolation.Host{Majors: []gpu.Major{{Number: 1, Name: "mem"}, {Number: 195, Name: "nvidia"}}}
	leased := []edits.Node{{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, Access: "rw"}}

	e, gone, err := isolation.RestrictDevices(spec, host, leased)
	if err != nil {
		fmt.Println(err)
	}
	if err := e.Apply(spec); err != nil {
		fmt.Println(err)
	}
	for _, what := range gone {
		fmt.Println("gone:", what)
	}
	for _, r := range spec.Linux.Resources.Devices {
		fmt.Println(r.Allow, r.Type, edits.FromSpec(r).Major, edits.FromSpec(r).Minor, r.Access)
	}
	// Output:
	// gone: node /dev/nvidia1 (195:1)
	// gone: rule allow a *:* rwm
	// false a -1 -1 rwm
	// true c 1 -1 rwm
	// true b -1 -1 rwm
	// true c 195 0 rw
}
