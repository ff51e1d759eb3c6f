package guard

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/process"
)

func (e *eviction) has(group string) bool {
	e.Helper()
	dir, err := e.Cgroups.Dir(group)
	if err != nil {
		e.Fatal(err)
	}
	_, err = os.Stat(dir)
	return err == nil
}

// An empty outer cgroup stays for a container that may be about to be created: while the process
// that created it lives (unless that is the caller), and while there is a lease.
func TestOuterIsKeptForExpectedContainer(t *testing.T) {
	e := newEviction(t)
	start, err := process.Start("/proc", os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	gone := e.group + "/berth-999999.1-00000001"
	leased := e.group + "/berth-999999.1-00000002"
	made := e.group + fmt.Sprintf("/berth-%d.%d-00000003", os.Getppid(), start)
	reused := e.group + fmt.Sprintf("/berth-%d.%d-00000004", os.Getppid(), start+1)
	for _, path := range []string{gone, leased, made, reused} {
		if err := e.Cgroups.Create(path); err != nil {
			t.Fatal(err)
		}
	}
	e.lease("c", leased+"/c")
	e.sweepOuterCgroups(e.group)
	for path, want := range map[string]bool{gone: false, leased: true, made: true, reused: false} {
		if got := e.has(path); got != want {
			t.Errorf("%s is there after a sweep: %v, want %v", path, got, want)
		}
	}
	for path, want := range map[string]bool{leased: false, made: true} {
		if err := e.RemoveOuterCgroup(t.Context(), path); err != nil {
			t.Errorf("remove %s: %v", path, err)
		}
		if got := e.has(path); got != want {
			t.Errorf("%s is there after its container's end: %v, want %v", path, got, want)
		}
	}
}

// Without device rules there is nothing that an outer cgroup could enforce.
func TestCreateOuterCgroupNeedsRules(t *testing.T) {
	e := newEviction(t)
	for name, spec := range map[string]*specs.Spec{"nothing": {}, "no resources": {Linux: &specs.Linux{}}} {
		outer, err := e.newOuterPath(e.group+"/c", false)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.CreateOuterCgroup(t.Context(), outer, spec); err == nil || !strings.Contains(err.Error(), "the spec has no device rules") {
			t.Errorf("%s: %v", name, err)
		}
		if e.has(outer) {
			t.Errorf("%s: it was made", name)
		}
	}
}
