// Package hook holds black-box tests of berth-hook: the program as built, called by real runc and
// crun, and by podman, on simulated nodes.
//
// The runtimes are called as by an engine without the wrapper. The inside of a container is
// compared with that of the container that the wrapper makes of the same spec: docs/runtime.md has
// the differences, and no others are allowed.
package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rig"
)

var (
	shared *rig.Rig
	probe  string // see testdata/probe.c
	hook   string // berth-hook
)

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) (err error) {
		shared, hook = r, filepath.Join(r.Dir, "berth-hook")
		probe, err = r.Compile("probe", "testdata/probe.c", "-static")
		return err
	})
}

// world is a node with a runtime.
type world struct {
	*rig.Node
	runtime string
	cgroup  string // the version
}

// eachWorld runs a test on the pairs of runtime and version of cgroups, one after another, because
// they share the node's devices.
func eachWorld(t *testing.T, profile string, f func(t *testing.T, w *world)) {
	for cgroup, runtimes := range testutil.PairsByCgroup(t) {
		t.Run(cgroup, func(t *testing.T) {
			n := shared.Shared(t, profile, cgroup)
			for _, runtime := range runtimes {
				t.Run(runtime, func(t *testing.T) { f(t, &world{Node: n, runtime: runtime, cgroup: cgroup}) })
			}
		})
	}
}

// configure writes a configuration of berth and returns its path.
func (w *world) configure(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	text := fmt.Sprintf("runtime = %q\nberth = %q\n%s", w.runtime, w.Berth, more)
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// device is an accelerator's node of the simulated server.
type device struct {
	path         string // "/dev/nvidia0"
	major, minor uint32
}

// accelerators lists the server's nodes by their names.
func (w *world) accelerators(t *testing.T) (all []device) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(w.Path("/dev"), func(path string, e os.DirEntry, err error) error {
		name := strings.TrimPrefix(path, w.Path("/dev/"))
		if err != nil || e.Type()&os.ModeCharDevice == 0 || !strings.HasPrefix(name, "nvidia") && !strings.HasPrefix(name, "dri/") {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return err
		}
		all = append(all, device{"/dev/" + name, unix.Major(st.Rdev), unix.Minor(st.Rdev)})
		return nil
	}))
	if len(all) < 10 {
		t.Fatalf("only %d accelerator nodes: %v", len(all), all)
	}
	return all
}

// removeCgroups removes the cgroups whose names have a prefix. A process that exits, like podman's
// conmon, takes a moment to leave its cgroup.
func (w *world) removeCgroups(t *testing.T, prefix string) {
	t.Helper()
	const remove = `for _ in $(seq 100); do
	said=$(find /sys/fs/cgroup -depth -type d -path "*/$0*" -exec rmdir {} + 2>&1) && exit
	sleep 0.05
done
echo "$said" >&2
exit 1`
	w.Do(t, "sh", "-c", remove, prefix)
}
