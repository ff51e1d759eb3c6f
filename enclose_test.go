package berth

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// What others left beside a new outer cgroup goes if nobody uses it; whatever can't go
// stands in the way of no container.
func TestEncloseSweeps(t *testing.T) {
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
		if err := e.cgroups.Create(path); err != nil {
			t.Fatal(err)
		}
	}
	e.process(left["in use"]+"/c", 0)
	dir, err := e.cgroups.Dir(left["held"])
	if err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(dir) // as any user may
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() // only locked
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}}}
	outer, ok, err := Outer(spec, e.group+"/c")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := e.Enclose(t.Context(), outer, spec); err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, path := range left {
		dir, err := e.cgroups.Dir(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); err == nil {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if want := []string{"held", "in use", "new", "other"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}
