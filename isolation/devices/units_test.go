package devices

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func TestUnits(t *testing.T) {
	u := Units{Tree: cgroup.Hierarchy{Version: cgroup.V2, Root: t.TempDir()}, Dir: t.TempDir(), State: filepath.Join(t.TempDir(), "units")}
	rules := []edits.Rule{denyAll(), allow("c", 195, 0, "rw")}
	first, second := "/system.slice/docker-1.scope", "/system.slice/docker-2.scope/container"
	told := func(want ...string) {
		t.Helper()
		for _, dir := range []string{u.Dir, u.State} {
			var got []string
			entries, err := os.ReadDir(dir)
			testutil.Must(t, err)
			for _, e := range entries {
				got = append(got, e.Name())
			}
			var names []string
			for _, unit := range want {
				if dir == u.Dir {
					unit += ".d"
				}
				names = append(names, unit)
			}
			if !slices.Equal(got, names) {
				t.Errorf("%s holds %q, want %q", dir, got, names)
			}
		}
	}
	for _, path := range []string{first, second} {
		testutil.Must(t, os.MkdirAll(filepath.Join(u.Tree.Root, path), 0o755))
	}
	testutil.Must(t, u.Write(first, rules))
	testutil.Must(t, u.Write(first, rules))
	told("docker-1.scope")
	if text, err := os.ReadFile(filepath.Join(u.Dir, "docker-1.scope.d", dropIn)); string(text) != ownOf(t, rules) || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	testutil.Must(t, u.Write(second, rules))
	told("docker-1.scope", "docker-2.scope")
	testutil.Must(t, os.Remove(filepath.Join(u.Tree.Root, first)))
	testutil.Must(t, u.Write(second, rules))
	told("docker-2.scope")
}

func ownOf(t *testing.T, rules []edits.Rule) string {
	t.Helper()
	text, err := unitText("a.scope", slices.Concat(rules, Defaults()))
	testutil.Must(t, err)
	return text
}

// Without a unit, or without systemd, nothing is written.
func TestWriteWithoutUnit(t *testing.T) {
	u := Units{Tree: cgroup.Hierarchy{Version: cgroup.V2, Root: t.TempDir()}, Dir: t.TempDir(), State: filepath.Join(t.TempDir(), "units")}
	testutil.Must(t, u.Write("/docker/1", nil))
	none := u
	none.Dir = filepath.Join(u.Dir, "none")
	testutil.Must(t, none.Write("/system.slice/docker-1.scope", nil))
	if left, err := os.ReadDir(u.Dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(u.State); !os.IsNotExist(err) {
		t.Errorf("made: %v", err)
	}
}
