package guard

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/devices"
)

// A new outer cgroup's creation removes unused outer cgroups beside it; one that can't be removed
// makes it no error.
func TestCreateOuterCgroupSweeps(t *testing.T) {
	e := newEviction(t)
	start, err := process.Start("/proc", os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]string{
		"stale":  e.group + "/berth-999999.1-00000001",
		"held":   e.group + "/berth-999999.1-00000002",
		"in use": e.group + "/berth-999999.1-00000003",
		"new":    e.group + fmt.Sprintf("/berth-%d.%d-00000004", os.Getppid(), start),
		"other":  e.group + "/berth-and-more",
	}
	for _, path := range left {
		if err := e.Cgroups.Create(path); err != nil {
			t.Fatal(err)
		}
	}
	e.process(left["in use"]+"/c", 0)
	dir, err := e.Cgroups.Dir(left["held"])
	if err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(dir) // as any user may
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() // only its lock matters
	if err := lock.TryAcquire(int(held.Fd()), lock.Exclusive); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}}}
	outer, ok, err := e.OuterCgroupPath(spec, e.group+"/c", false, false)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := e.CreateOuterCgroup(t.Context(), outer, spec); err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, path := range left {
		dir, err := e.Cgroups.Dir(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); err == nil {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if want := []string{"in use", "new", "other"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// Unused outer slices are removed wherever they are, with their drop-ins, also where only the
// drop-in is left.
func TestCreateOuterCgroupSweepsSlices(t *testing.T) {
	e := newEviction(t)
	e.Units = t.TempDir()
	start, err := process.Start("/proc", os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("berthtest%d", os.Getpid())
	e.group = "/" + top + ".slice"
	units := map[string]string{
		"stale":  top + "-berth999999.1.00000001.slice",
		"told":   top + "-berth999999.1.00000002.slice",
		"in use": top + "-berth999999.1.00000003.slice",
		"new":    fmt.Sprintf("%s-berth%d.%d.00000004.slice", top, os.Getppid(), start),
		"other":  top + "-berthed.slice",
	}
	for name, unit := range units {
		if err := devices.WriteOuterSlice(e.Units, unit, nil); err != nil {
			t.Fatal(err)
		}
		if name != "told" {
			if err := e.Cgroups.Create(e.group + "/" + unit); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.process(e.group+"/"+units["in use"]+"/c.scope", 0)
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}}}
	outer, err := e.newOuterPath(e.group+"/c.scope", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.CreateOuterCgroup(t.Context(), outer, spec); err != nil {
		t.Fatal(err)
	}
	want := []string{units["in use"], units["new"], units["other"], path.Base(outer)}
	slices.Sort(want)
	if got, err := devices.ListOuterSlices(e.Units); err != nil || !slices.Equal(got, want) {
		t.Errorf("systemd was told of %q, %v; want %q", got, err, want)
	}
	dir, err := e.Cgroups.Dir(e.group)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := filepath.Glob(dir + "/*.slice"); err != nil || len(got) != len(want) {
		t.Errorf("left are %q, %v", got, err)
	}
	if err := e.RemoveOuterCgroup(t.Context(), outer); err != nil {
		t.Fatal(err)
	}
	if got, err := devices.ListOuterSlices(e.Units); err != nil || slices.Contains(got, path.Base(outer)) {
		t.Errorf("after the container: %q, %v", got, err)
	}
}
