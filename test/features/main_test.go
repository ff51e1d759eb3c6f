// Package features checks, from inside real containers, what a container has beside the leased
// GPUs: the features that it requested and the admin allows, and nothing else. That is the further
// classes of devices, the driver's files of the chosen capabilities, the content of /proc/driver,
// the services' sockets. It also checks which containers the guard exempts.
//
// It does so through every entry point that gives a container a GPU. The nodes are simulated, so
// there is no driver behind the devices: opening one gives ENXIO where the rules allow it, and
// EPERM where they don't.
package features

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
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

// The entry points.
const (
	byWrapper = "wrapper" // as an engine's runtime, by its annotation
	byHook    = "hook"    // by a createRuntime hook of the spec, with a plain runtime
	byRun     = "run"     // berth run
	byAlloc   = "alloc"   // berth run in a berth alloc
)

// entryPoint is an entry point on a node.
type entryPoint struct {
	*rig.Node
	way, runtime string
}

type kind struct{ way, runtime, cgroup string }

// allKinds are all entry points with both runtimes, and both versions of cgroups.
func allKinds() []kind {
	return []kind{
		{byWrapper, "runc", "v1"},
		{byWrapper, "crun", "v2"},
		{byHook, "runc", "v2"},
		{byHook, "crun", "v1"},
		{byRun, "runc", "v2"},
		{byRun, "crun", "v1"},
		{byAlloc, "crun", "v2"},
		{byAlloc, "runc", "v1"},
	}
}

// kindsWithBundle are the kinds in which an engine writes the container's spec.
func kindsWithBundle() []kind { return allKinds()[:4] }

// oneOfEach has one kind of each entry point, for tests in which entry points and runtimes only pass a
// message on.
func oneOfEach() []kind { return []kind{allKinds()[0], allKinds()[3], allKinds()[4]} }

// eachKind runs a test with each kind. It has to be the last call of a test. Tests of one node run
// one after another, because they share its devices.
func eachKind(t *testing.T, profile string, all []kind, f func(t *testing.T, d entryPoint)) {
	t.Helper()
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			t.Parallel()
			for _, k := range all {
				if k.cgroup == cgroup {
					t.Run(k.way+" "+k.runtime, func(t *testing.T) {
						f(t, entryPoint{Node: shared.Shared(t, profile, cgroup), way: k.way, runtime: k.runtime})
					})
				}
			}
		})
	}
}

// configure writes a configuration of berth and returns its path.
func (d entryPoint) configure(t *testing.T, policy string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	text := fmt.Sprintf("runtime = %q\nberth = %q\n[policy]\n%s\n", d.runtime, d.Berth, policy)
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// device is an accelerator's node of the simulated server.
type device struct {
	path         string // "/dev/nvidia0"
	major, minor uint32
}

func (d device) number() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

// accelerators lists the server's nodes by their names, and not by their majors as berth does.
func (d entryPoint) accelerators(t *testing.T) (all []device) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(d.Path("/dev"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeCharDevice == 0 {
			return err
		}
		name := strings.TrimPrefix(path, d.Path("/dev/"))
		if !slices.ContainsFunc([]string{"nvidia", "gdrdrv", "dri/", "infiniband/u"}, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		}) {
			return nil
		}
		var st unix.Stat_t
		rig.Must(t, unix.Stat(path, &st))
		all = append(all, device{"/dev/" + name, unix.Major(st.Rdev), unix.Minor(st.Rdev)})
		return nil
	}))
	if len(all) < 15 {
		t.Fatalf("only %d accelerator nodes: %v", len(all), all)
	}
	return all
}

// nodesOf lists the nodes that come with a device, by the simulated server's data: a GPU's, and for
// a slice those of its capabilities too.
func (d entryPoint) nodesOf(t *testing.T, uuid string) []string {
	t.Helper()
	p := d.State.Blueprint()
	for i, g := range p.GPUs {
		gpu := fmt.Sprintf("/dev/nvidia%d", g.Minor)
		if p.UUID(i) == uuid {
			return []string{gpu}
		}
		for _, s := range d.State.Slices(i) {
			if p.SliceUUID(i, s) == uuid {
				gi, ci := s.Minors(g.Minor)
				return []string{gpu, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", ci)}
			}
		}
	}
	for _, h := range p.HCAs {
		if "HCA-"+strings.ReplaceAll(h.GUID(), ":", "-") == uuid {
			return []string{fmt.Sprintf("/dev/infiniband/uverbs%d", h.Uverbs)}
		}
	}
	t.Fatalf("the server has no %s", uuid)
	return nil
}
