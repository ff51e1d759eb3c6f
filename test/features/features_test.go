package features

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	persistenced  = "/run/nvidia-persistenced/socket"
	fabricManager = "/run/nvidia-fabricmanager/socket"
	everyFeature  = `features = ["fabricmanager", "gdrcopy", "gds", "imex", "nvswitch"]`
)

// opens compares the accelerators that the container can open with its lease's nodes and those
// named: for reading, writing and both, by the node itself, by a bind of the host's /dev and by a
// node of the image.
func (c *container) opens(more ...string) {
	c.t.Helper()
	own := map[string]bool{}
	if c.request != "" {
		for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
			own["/dev/"+name] = true
		}
		for _, d := range c.lease().Devices {
			for _, path := range c.d.nodesOf(c.t, d.UUID) {
				own[path] = true
			}
		}
	}
	for _, path := range more {
		own[path] = true
	}
	c.checkOpens(own)
}

func (c *container) checkOpens(own map[string]bool) {
	c.t.Helper()
	want, got := map[string]string{}, map[string]string{}
	for _, d := range c.d.accelerators(c.t) {
		for path, closed := range map[string]string{d.path: "ENOENT", "/host" + d.path: "EPERM", "/nodes/" + d.number(): "EPERM"} {
			got[path], want[path] = c.ask("open " + path)[0], readWriteBoth(closed)
			if own[d.path] {
				want[path] = readWriteBoth("ENXIO")
			}
			// In a root of berth run no node works, whatever the rules are.
			if strings.HasPrefix(path, "/nodes/") && got[path] == readWriteBoth("EACCES") && (c.d.way == byRun || c.d.way == byAlloc) {
				delete(want, path)
				delete(got, path)
			}
		}
		delete(own, d.path)
	}
	if len(own) > 0 {
		c.t.Errorf("the server has no %v", slices.Sorted(maps.Keys(own)))
	}
	if d := cmp.Diff(want, got); d != "" {
		c.t.Errorf("what can be opened (-want +got):\n%s", d)
	}
}

func readWriteBoth(s string) string { return s + " " + s + " " + s }

// numbered are paths that differ by a number.
func numbered(format string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

// The requested and allowed classes of devices come, each by itself.
func TestFeatures(t *testing.T) {
	for _, tt := range []struct {
		request string
		nodes   []string
		fabric  string // what connecting to the fabric manager gives
	}{
		{"2", nil, "ENOENT"},
		{"2,+gds", numbered("/dev/nvidia-fs%d", 16), "ENOENT"},
		{"1,+gdrcopy", []string{"/dev/gdrdrv"}, "ENOENT"},
		{"1,+nvswitch", append(numbered("/dev/nvidia-nvswitch%d", 4), "/dev/nvidia-nvswitchctl"), "ENOENT"},
		{"1,+imex=0-1", numbered("/dev/nvidia-caps-imex-channels/channel%d", 2), "ENOENT"},
		{"1,+imex=3", []string{"/dev/nvidia-caps-imex-channels/channel3"}, "ENOENT"},
		{"1,+fabricmanager", nil, "ok"},
		{"1,+gdrcopy,+fabricmanager,+imex=2", []string{"/dev/gdrdrv", "/dev/nvidia-caps-imex-channels/channel2"}, "ok"},
	} {
		t.Run(tt.request, func(t *testing.T) {
			eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: tt.request, policy: everyFeature})
				c.opens(tt.nodes...)
				c.wantAnswer("connect "+fabricManager, tt.fabric)
				c.wantAnswer("connect "+persistenced, "ENOENT")
				c.end()
			})
		})
	}
}

// Without the admin's permission no entry point gives a feature.
func TestFeaturesNeedPermission(t *testing.T) {
	for _, tt := range []struct{ request, policy, name string }{
		{"2,+gds", "", "gds"},
		{"1,+gdrcopy", `features = ["gds", "nvswitch"]`, "gdrcopy"},
		{"1,+nvswitch", "", "nvswitch"},
		{"1,+imex=0-1", "", "imex"},
		{"1,+fabricmanager", "", "fabricmanager"},
		{"1,+gds,+gdrcopy", `features = ["gds"]`, "gdrcopy"},
	} {
		t.Run(tt.request, func(t *testing.T) {
			all := allKinds()
			if tt.name != "gds" {
				all = oneOfEach()
			}
			eachKind(t, "dgx-h100", all, func(t *testing.T, d entryPoint) {
				d.wantRefused(t, task{request: tt.request, policy: tt.policy}, "feature "+tt.name, "policy.features")
			})
		})
	}
}

// A missing feature is an error that names it.
func TestFeaturesThatTheNodeLacks(t *testing.T) {
	for _, tt := range []struct{ profile, request, want string }{
		{"l40s-pcie", "1,+nvswitch", "nvswitch"},
		{"l40s-pcie", "1,+gds", "/dev/nvidia-fs"},
		{"l40s-pcie", "1,+gdrcopy", "/dev/gdrdrv"},
		{"l40s-pcie", "1,+imex=0", "/dev/nvidia-caps-imex-channels/channel0"},
		{"l40s-pcie", "1,+fabricmanager", fabricManager},
		{"dgx-h100", "1,+imex=2-4", "/dev/nvidia-caps-imex-channels/channel4"},
	} {
		t.Run(tt.profile+" "+tt.request, func(t *testing.T) {
			all := oneOfEach()
			if strings.Contains(tt.request, "nvswitch") {
				all = allKinds()
			}
			eachKind(t, tt.profile, all, func(t *testing.T, d entryPoint) {
				d.wantRefused(t, task{request: tt.request, policy: everyFeature}, "feature", "this node has no", tt.want)
			})
		})
	}
}

// hostileEnvironment is an environment that an image's author can write.
func hostileEnvironment() []string {
	return []string{
		"NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_NVSWITCH=enabled", "NVIDIA_MOFED=enabled",
		"NVIDIA_IMEX_CHANNELS=0", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all",
		"NVIDIA_DRIVER_CAPABILITIES=compute,utility", "BERTH_GPUS=8,+gds",
	}
}

// The environment of an image, whose author writes it, brings no feature, even where the policy
// allows all.
func TestEnvironmentBringsNoFeature(t *testing.T) {
	eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
		c := d.run(t, task{request: "1", env: hostileEnvironment(), policy: everyFeature})
		c.opens()
		c.wantAnswer("connect "+fabricManager, "ENOENT")
		c.end()
	})
}

// Without a request of the user it brings nothing at all.
func TestEnvironmentBringsNothing(t *testing.T) {
	eachKind(t, "dgx-h100", allKinds()[:6], func(t *testing.T, d entryPoint) {
		env := hostileEnvironment()
		if d.way == byRun { // berth run refuses a variable that is set by the user and requests GPUs, because it would have no effect
			env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "NVIDIA_VISIBLE_DEVICES=") })
		}
		c := d.run(t, task{env: env, policy: everyFeature})
		for _, l := range d.Leases(t) {
			if l.Live || l.Owner.Container == c.id || l.Owner.Name == c.id {
				t.Errorf("lease: %+v", l)
			}
		}
		c.wantAnswer("ls /usr/local/nvidia", "ENOENT")
		c.wantAnswer("connect "+persistenced, "ENOENT")
		c.opens()
		c.end()
	})
}

// With a slice, features are the same as with a whole GPU.
func TestFeaturesOfASlice(t *testing.T) {
	eachKind(t, "dgx-a100-mig", oneOfEach(), func(t *testing.T, d entryPoint) {
		c := d.run(t, task{request: "1g.10gb,+nvswitch,+fabricmanager", policy: everyFeature})
		c.opens(append(numbered("/dev/nvidia-nvswitch%d", 6), "/dev/nvidia-nvswitchctl")...)
		c.wantAnswer("connect "+fabricManager, "ok")
		c.end()
	})
}

// Inside an allocation a container gets the features of the allocation that it requests, and no
// others.
func TestFeaturesOfAnAllocation(t *testing.T) {
	for _, tt := range []struct {
		lease, request string
		nodes          []string
		refused        string
	}{
		{lease: "2,+gdrcopy,+imex=0-3", request: "1", nodes: nil},
		{lease: "2,+gdrcopy,+imex=0-3", request: "1,+imex=1", nodes: []string{"/dev/nvidia-caps-imex-channels/channel1"}},
		{lease: "1,+gdrcopy", request: "all", nodes: []string{"/dev/gdrdrv"}},
		{lease: "1,+gdrcopy", request: "all,+gds", refused: "gds"},
		{lease: "2", request: "1,+gdrcopy", refused: "gdrcopy"},
		{lease: "1,+imex=0-1", request: "1,+imex=0-2", refused: "imex=0-2"},
	} {
		t.Run(tt.lease+" "+tt.request, func(t *testing.T) {
			eachKind(t, "dgx-h100", allKinds()[6:], func(t *testing.T, d entryPoint) {
				k := task{request: tt.lease, policy: everyFeature, flags: []string{"--gpus", tt.request}}
				if tt.refused != "" {
					d.wantRefused(t, k, "around this process is without feature "+tt.refused)
					return
				}
				c := d.run(t, k)
				gpus := slices.DeleteFunc(c.ask("ls /dev"), func(name string) bool { return !strings.HasPrefix(name, "nvidia") || len(name) != 7 })
				if tt.request != "all" && len(gpus) != 1 {
					t.Errorf("GPUs: %v", gpus)
				}
				own := map[string]bool{"/dev/nvidiactl": true, "/dev/nvidia-uvm": true, "/dev/nvidia-uvm-tools": true}
				for _, name := range gpus {
					own["/dev/"+name] = true
				}
				for _, path := range tt.nodes {
					own[path] = true
				}
				c.checkOpens(own)
				c.end()
			})
		})
	}
}
