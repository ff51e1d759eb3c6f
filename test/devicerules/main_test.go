// Package devicerules checks, from inside real containers, that a container opens the accelerators
// that it leased and no others: on cgroup v1 and v2, with runc and crun, through the runtime
// wrapper and the launcher.
//
// The nodes are simulated, so there is no driver behind the devices: opening one gives ENXIO where
// the rules allow it, and EPERM where they don't.
package devicerules

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

var (
	shared *rig.Rig
	probe  string // a static program, see testdata/probe.c
)

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) (err error) {
		shared = r
		probe, err = r.Compile("probe", "testdata/probe.c", "-static")
		return err
	})
}

// device is an accelerator's node of the simulated server.
type device struct {
	path         string // "/dev/nvidia0"
	major, minor uint32
}

func (d device) number() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

// world is a node and a runtime.
type world struct {
	*rig.Node
	runtime string
	devices []device
}

// eachWorld runs a test on the pairs of runtime and version of cgroups. Tests of one node run one
// after another, because they share its devices.
func eachWorld(t *testing.T, profile string, f func(t *testing.T, w *world)) {
	for cgroup, runtimes := range testutil.PairsByCgroup(t) {
		t.Run(cgroup, func(t *testing.T) {
			t.Parallel()
			n := shared.Shared(t, profile, cgroup)
			for _, runtime := range runtimes {
				t.Run(runtime, func(t *testing.T) {
					f(t, &world{Node: n, runtime: runtime, devices: accelerators(t, n)})
				})
			}
		})
	}
}

// accelerators lists the server's nodes by their names, and not by their majors as berth does.
func accelerators(t *testing.T, n *rig.Node) []device {
	t.Helper()
	var all []device
	rig.Must(t, filepath.WalkDir(n.Path("/dev"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeCharDevice == 0 {
			return err
		}
		name := strings.TrimPrefix(path, n.Path("/dev/"))
		for _, prefix := range []string{"nvidia", "dri/", "infiniband/uverbs", "infiniband/umad", "infiniband/issm"} {
			if strings.HasPrefix(name, prefix) {
				major, minor := numbers(t, path)
				all = append(all, device{"/dev/" + name, major, minor})
				break
			}
		}
		return nil
	}))
	if len(all) < 30 {
		t.Fatalf("only %d accelerator nodes: %v", len(all), all)
	}
	return all
}

func numbers(t *testing.T, path string) (major, minor uint32) {
	t.Helper()
	var st unix.Stat_t
	rig.Must(t, unix.Stat(path, &st))
	return unix.Major(st.Rdev), unix.Minor(st.Rdev)
}

// nodesOfLease returns the nodes that come with a lease, by the simulated server's data: a GPU's, for a
// slice those of its capabilities too, and the control nodes.
func (w *world) nodesOfLease(t *testing.T, l rig.Lease) map[string]bool {
	t.Helper()
	if len(l.Devices) == 0 {
		return nil
	}
	set := map[string]bool{"/dev/nvidiactl": true, "/dev/nvidia-uvm": true, "/dev/nvidia-uvm-tools": true}
	for _, d := range l.Devices {
		paths := nodesOf(w.State, d.UUID)
		if paths == nil {
			t.Fatalf("lease %s: the server has no %s", l.ID, d.UUID)
		}
		for _, p := range paths {
			set[p] = true
		}
	}
	return set
}

func nodesOf(n sim.Node, uuid string) []string {
	p := n.Blueprint()
	for i, g := range p.GPUs {
		gpu := fmt.Sprintf("/dev/nvidia%d", g.Minor)
		if p.UUID(i) == uuid {
			return []string{gpu}
		}
		for _, s := range n.Slices(i) {
			if p.SliceUUID(i, s) == uuid {
				gi, ci := s.Minors(g.Minor)
				return []string{gpu, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", ci)}
			}
		}
	}
	return nil
}

// configure writes a configuration of berth and returns its path.
func (w *world) configure(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	text := fmt.Sprintf("runtime = %q\nberth = %q\n%s", w.runtime, w.Berth, more)
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
