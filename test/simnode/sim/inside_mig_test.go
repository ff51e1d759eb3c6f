package sim

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

func testSlices(t *testing.T, lib nvml.Interface, n Node, p Profile) {
	for i := range p.GPUs {
		parent, r := lib.DeviceGetHandleByIndex(i)
		must(t, r)
		want := n.Slices(i)
		for k := range 7 {
			d, r := parent.GetMigDeviceHandleByIndex(k)
			if k >= len(want) {
				if r == nvml.SUCCESS {
					t.Errorf("GPU %d has a slice %d", i, k)
				}
				continue
			}
			must(t, r)
			if diff := cmp.Diff(want[k], slice(t, p, i, d)); diff != "" {
				t.Errorf("GPU %d, slice %d: %s", i, k, diff)
			}
			up, r := d.GetDeviceHandleFromMigDeviceHandle()
			if must(t, r); up != parent {
				t.Errorf("GPU %d, slice %d has another parent", i, k)
			}
			same, r := lib.DeviceGetHandleByUUID(p.SliceUUID(i, want[k]))
			if must(t, r); same != d {
				t.Errorf("GPU %d, slice %d has another handle by UUID", i, k)
			}
		}
		testInstances(t, n, i, parent)
	}
}

func slice(t *testing.T, p Profile, index int, d nvml.Device) Slice {
	t.Helper()
	is, r := d.IsMigDeviceHandle()
	if must(t, r); !is {
		t.Error("slice isn't a MIG device")
	}
	var s Slice
	name, r := d.GetName()
	must(t, r)
	s.Profile = strings.TrimPrefix(name, p.GPUs[index].Model.Name+" MIG ")
	s.GI, r = d.GetGpuInstanceId()
	must(t, r)
	s.CI, r = d.GetComputeInstanceId()
	must(t, r)
	a, r := d.GetAttributes()
	must(t, r)
	s.Memory = a.MemorySizeMB << 20
	id, r := d.GetUUID()
	must(t, r)
	if want := p.SliceUUID(index, s); id != want {
		t.Errorf("UUID is %s, want %s", id, want)
	}
	return s
}

// testInstances goes the other way: from profiles to instances.
func testInstances(t *testing.T, n Node, index int, d nvml.Device) {
	t.Helper()
	var got []Instance
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, r := d.GetGpuInstanceProfileInfo(kind)
		if r == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		must(t, r)
		named, r := d.GetGpuInstanceProfileInfoByIdV(kind).V3()
		if r == nvml.SUCCESS && named.Id != info.Id {
			t.Errorf("profile %d has ids %d and %d", kind, info.Id, named.Id)
		}
		instances, r := d.GetGpuInstances(&info)
		must(t, r)
		for _, in := range instances {
			got = append(got, instance(t, n, index, in))
		}
	}
	want := map[int]Instance{}
	for _, in := range n.GPUs[index].Instances {
		want[in.ID] = in
	}
	have := map[int]Instance{}
	for _, in := range got {
		have[in.ID] = in
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("GPU %d: %s", index, diff)
	}
}

func instance(t *testing.T, n Node, index int, in nvml.GpuInstance) Instance {
	t.Helper()
	info, r := in.GetInfo()
	must(t, r)
	got := Instance{ID: int(info.Id), Start: int(info.Placement.Start)}
	for _, s := range n.Blueprint().GPUs[index].Model.Slicings {
		if s.ID == int(info.ProfileId) {
			got.Slicing = s.Name
		}
	}
	sizes := map[uint32]int{}
	for kind := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		profile, r := in.GetComputeInstanceProfileInfo(kind, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if r != nvml.SUCCESS {
			continue
		}
		all, r := in.GetComputeInstances(&profile)
		must(t, r)
		for _, ci := range all {
			info, r := ci.GetInfo()
			must(t, r)
			sizes[info.Id] = int(info.Placement.Size)
		}
	}
	for id := range len(sizes) {
		got.Compute = append(got.Compute, sizes[uint32(id)])
	}
	return got
}
