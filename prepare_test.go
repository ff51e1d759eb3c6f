package berth_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func examplePlan() berth.Plan {
	return berth.Plan{
		Selection: cdi.Selection{Capabilities: gpu.Compute | gpu.Utility},
		Inventory: gpu.Inventory{GPUs: []gpu.GPU{
			{UUID: "GPU-a", Index: 0, Minor: 0, Model: "NVIDIA H100"},
			{UUID: "GPU-b", Index: 1, Minor: 1, Model: "NVIDIA H100"},
		}},
		Majors: []gpu.Major{
			{Number: 1, Name: "mem"},
			{Number: 5, Name: "/dev/tty"},
			{Number: 195, Name: "nvidia"},
			{Number: 510, Name: "nvidia-uvm"},
		},
		Accelerators: map[string]uint32{"nvidia": 195, "nvidia-uvm": 510},
		Files:        edits.Edits{Mounts: []specs.Mount{{Destination: "/usr/local/nvidia", Source: "/d", Type: "bind", Options: []string{"ro"}}}},
		Stat:         func(string) (isolation.Number, bool) { return isolation.Number{}, false },
	}
}

func exampleLease() *ledger.Lease {
	return &ledger.Lease{ID: "0123456789ab", Devices: []gpu.Device{{UUID: "GPU-b", Index: "1"}}}
}

// privilegedSpec is what an engine writes for --privileged --device /dev/nvidia0.
func privilegedSpec() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{
			Env:          []string{"PATH=/bin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_MKNOD"}},
		},
		Linux: &specs.Linux{
			Devices:   []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
}

func prepare(t *testing.T, s *specs.Spec, l *ledger.Lease) {
	t.Helper()
	if _, err := berth.Prepare(s, l, examplePlan()); err != nil {
		t.Fatal(err)
	}
}

func TestPrepareAddsOnlyTheLease(t *testing.T) {
	s := privilegedSpec()
	prepare(t, s, exampleLease())
	var nodes []string
	for _, d := range s.Linux.Devices {
		nodes = append(nodes, d.Path)
	}
	if want := []string{"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}; !sameSet(nodes, want) {
		t.Errorf("nodes %v, want %v", nodes, want)
	}
	for _, r := range s.Linux.Resources.Devices {
		if r.Allow && (r.Major == nil || *r.Major == 195 && (r.Minor == nil || *r.Minor == 0)) && r.Type != "b" {
			t.Errorf("rule %+v opens GPU 0", r)
		}
	}
	if slices.Contains(s.Process.Capabilities.Bounding, "CAP_MKNOD") {
		t.Error("CAP_MKNOD is still there")
	}
	for _, want := range []string{"NVIDIA_VISIBLE_DEVICES=void", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "BERTH_DEVICES=GPU-b", "BERTH_LEASE=0123456789ab"} {
		if !slices.Contains(s.Process.Env, want) {
			t.Errorf("%s is not in %v", want, s.Process.Env)
		}
	}
	if s.Annotations[berth.LeaseAnnotation] != "0123456789ab" {
		t.Errorf("annotations %v don't name the lease", s.Annotations)
	}
}

func TestPrepareIsIdempotent(t *testing.T) {
	for name, l := range map[string]*ledger.Lease{"with a lease": exampleLease(), "the guard alone": nil} {
		t.Run(name, func(t *testing.T) {
			once, twice := privilegedSpec(), privilegedSpec()
			prepare(t, once, l)
			prepare(t, twice, l)
			prepare(t, twice, l)
			if diff := cmp.Diff(once, twice); diff != "" {
				t.Errorf("the second time changed (-once +twice):\n%s", diff)
			}
		})
	}
}

func TestGuardClosesUnleasedDevices(t *testing.T) {
	s := privilegedSpec()
	prepare(t, s, nil)
	if len(s.Linux.Devices) != 0 {
		t.Errorf("nodes %+v are left", s.Linux.Devices)
	}
	for _, r := range s.Linux.Resources.Devices {
		if r.Allow && r.Major != nil && (*r.Major == 195 || *r.Major == 510) {
			t.Errorf("rule %+v opens an accelerator", r)
		}
	}
}

func TestPrepareRefusesMissingSlice(t *testing.T) {
	l := exampleLease()
	l.Devices = []gpu.Device{{UUID: "MIG-gone", Parent: "GPU-a", Index: "0:0", Profile: "1g.10gb"}}
	before, s := privilegedSpec(), privilegedSpec()
	if _, err := berth.Prepare(s, l, examplePlan()); err == nil {
		t.Fatal("no error for a slice that the node doesn't have")
	}
	if diff := cmp.Diff(before, s); diff != "" {
		t.Errorf("the spec was changed all the same:\n%s", diff)
	}
}

func sameSet(a, b []string) bool {
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
