package faults

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestNothingGrows: after tasks of all kinds are gone, the directories of state and data have the
// files that they had after the first of these tasks were, and none of them has a cgroup.
func TestNothingGrows(t *testing.T) {
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			s := startServer(t, "dgx-h100", cgroup, "runc")
			runTasks(t, s)
			before := listTrees(t, s)
			for range 2 {
				runTasks(t, s)
			}
			for _, path := range listTrees(t, s) {
				if !slices.Contains(before, path) {
					t.Errorf("left behind: %s", path)
				}
			}
		})
	}
}

// runTasks runs tasks of several kinds to their end, and removes them.
func runTasks(t *testing.T, s server) {
	t.Helper()
	image := rig.ImagePath(t, "busybox")
	run := func(words ...string) {
		t.Helper()
		s.Do(t, s.Berth, append([]string{"run", "--runtime", s.runtime}, words...)...)
	}
	run("--gpus", "1", image, "true")
	run("--gpus", "2", "--rm=false", "--name", "kept", image, "true")
	run("--privileged", image, "true")
	run("-n", "2", "--gpus-per-rank", "1", "--network", "none", image, "true")
	run("-d", "--name", "long", "--gpus", "1", "--restart", "always", "--log-opt", "max-size=64k", image, "sh", "-c", "sleep 1000")
	for range 3 {
		s.Do(t, s.Berth, "exec", "long", "true")
	}
	run("-d", "--rm", "--name", "short", image, "true")
	s.Do(t, s.Berth, "alloc", "1", "true")
	if said := s.Run(t, s.Command(s.Berth, "run", "--runtime", s.runtime, image, "/no/such")); said.Code != 127 {
		t.Errorf("%+v", said)
	}
	ids := strings.Fields(s.Do(t, s.Berth, "ps", "--all", "--quiet"))
	s.Do(t, s.Berth, "rm", "-f", "long", "kept", "short")
	expectNoCgroups(t, s, ids)
}

// listTrees lists the files of berth's directories, but for old event logs.
func listTrees(t *testing.T, s server) (all []string) {
	t.Helper()
	for _, root := range []string{"/var/lib/berth", "/run/berth"} {
		err := filepath.WalkDir(s.Path(root), func(path string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err == nil && !strings.HasPrefix(d.Name(), "events.log.") {
				all = append(all, path)
			}
			return err
		})
		rig.Must(t, err)
	}
	return all
}

// expectNoCgroups fails for cgroups that are left of tasks. Other tests have tasks in the same
// hierarchies.
func expectNoCgroups(t *testing.T, s server, ids []string) {
	t.Helper()
	for _, id := range ids {
		for _, pattern := range []string{"/sys/fs/cgroup/berth/" + id, "/sys/fs/cgroup/*/berth/" + id} {
			left, err := filepath.Glob(s.Path(pattern))
			rig.Must(t, err)
			if len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		}
	}
}
