package devicerules

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// Hostile specs: one names every accelerator, the other allows everything.
func (w *world) hostileSpecs(t *testing.T) map[string]*specs.Spec {
	return map[string]*specs.Spec{
		"everything listed":  w.disguisedSpec(t, w.listedSpec(t)),
		"everything allowed": privileged(w.disguisedSpec(t, w.listedSpec(t))),
	}
}

// Every kind of request through the wrapper, over the container's whole life.
func TestWrapper(t *testing.T) {
	for _, tt := range []struct {
		profile string
		request string
		want    int
	}{
		{"dgx-h100", "1", 1},
		{"dgx-h100", "2", 2},
		{"dgx-h100", "6,3", 2},
		{"dgx-a100-mig", "1g.10gb", 1},
		{"dgx-a100-mig", "1", 1},
	} {
		t.Run(tt.profile+" "+tt.request, func(t *testing.T) {
			eachWorld(t, tt.profile, func(t *testing.T, w *world) {
				for name, spec := range w.hostileSpecs(t) {
					t.Run(name, func(t *testing.T) {
						c := create(t, w, w.configure(t, ""), requesting(spec, tt.request))
						if l := c.lease(); len(l.Devices) != tt.want {
							t.Fatalf("the lease is %+v", l)
						}
						c.checkWholeLife(ways{own: w.nodesOfLease(t, c.lease()), bound: true, fuse: true})
						c.delete()
					})
				}
			})
		})
	}
}

// checkWholeLife checks the container's device rules at each step of its life.
func (c *container) checkWholeLife(x ways) {
	c.t.Helper()
	c.checkNoMknod()
	c.checkDevices("at start", x)
	c.checkBindsRemoved()
	c.update()
	c.checkDevices("after update", x)
	c.checkDevicesOfExec("in exec", x)
	x.mknod = true
	c.checkDevicesOfExec("in exec with CAP_MKNOD", x, "--cap", "CAP_MKNOD", "--cap", "CAP_DAC_OVERRIDE")
	x.mknod = false
	c.checkBesideNeighbour(x)
}

// checkNoMknod checks that no capability set has CAP_MKNOD.
func (c *container) checkNoMknod() {
	c.t.Helper()
	sets := strings.Fields(c.ask("caps")[0])
	if len(sets) != 5 {
		c.t.Fatalf("capability sets %q", sets)
	}
	for _, s := range sets {
		set, err := strconv.ParseUint(s, 16, 64)
		rig.Must(c.t, err)
		if set&mkNode != 0 {
			c.t.Errorf("CAP_MKNOD is in one of %q", sets)
		}
	}
}

// checkBindsRemoved checks that the binds of disguised devices are removed.
func (c *container) checkBindsRemoved() {
	c.t.Helper()
	want := []string{"ENOENT", "ENOENT", "ENOENT"}
	if d := cmp.Diff(want, c.ask("open /stolen/link", "open /stolen/innocent", "open /dev/innocent")); d != "" {
		c.t.Errorf("devices by other names (-want +got):\n%s", d)
	}
}

// update changes limits. On cgroup v2 not every machine that runs these tests has a controller for
// it: an empty update also sets everything up again.
func (c *container) update() {
	c.t.Helper()
	if c.w.State.Cgroup == "v1" {
		c.must("update", "--pids-limit", "200", "--memory", "268435456", c.id)
	}
	file := filepath.Join(c.t.TempDir(), "resources")
	rig.Must(c.t, os.WriteFile(file, []byte("{}"), 0o600))
	c.must("update", "--resources", file, c.id)
}

// checkBesideNeighbour checks the rules while another task acquires devices, and after it has released
// them.
func (c *container) checkBesideNeighbour(x ways) {
	c.t.Helper()
	neighbour := create(c.t, c.w, c.w.configure(c.t, ""), requesting(withDev(c.w.plainSpec(c.t)), "1"))
	theirs := ways{own: c.w.nodesOfLease(c.t, neighbour.lease())}
	gpu := nodesOf(c.w.State, neighbour.lease().Devices[0].UUID)[0]
	if x.own[gpu] {
		c.t.Errorf("both have %s", gpu)
	}
	neighbour.checkDevices("as a neighbour", theirs)
	c.checkDevices("beside a neighbour", x)
	neighbour.delete()
	c.checkDevices("after the neighbour is gone", x)
}

// Two tasks with slices of one GPU share only the GPU's node.
func TestSlicesOfOneGPU(t *testing.T) {
	eachWorld(t, "dgx-a100-mig", func(t *testing.T, w *world) {
		first := create(t, w, w.configure(t, ""), requesting(w.listedSpec(t), "1:0"))
		second := create(t, w, w.configure(t, ""), requesting(w.listedSpec(t), "1:1"))
		a, b := w.nodesOfLease(t, first.lease()), w.nodesOfLease(t, second.lease())
		for path := range a {
			if strings.Contains(path, "nvidia-cap") && b[path] || len(a) != 6 || len(b) != 6 {
				t.Fatalf("both have %s: %v and %v", path, a, b)
			}
		}
		first.checkDevices("first", ways{own: a, bound: true, fuse: true})
		second.checkDevices("second", ways{own: b, bound: true, fuse: true})
	})
}
