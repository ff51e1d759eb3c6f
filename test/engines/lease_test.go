package engines

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// Docker lists each device of berth's specs.
func TestMenu(t *testing.T) {
	skipUnlessWanted(t)
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			h := start(t, "forky", cgroup)
			h.once("docker", func() { docker().prepare(t, h) })
			if got := h.do(t, "sh", "-c", `cd /tmp && "$0" cdi generate --output specs/berth`, shared.Berth); !strings.HasPrefix(got, "/tmp/specs/berth/berth-gpus.json\n") {
				t.Errorf("it has written %s", got)
			}
			h.do(t, shared.Berth, "cdi", "generate", "--nvidia") // the CDI specs are shared
			var ours struct{ Devices []struct{ Name string } }
			rig.Must(t, json.Unmarshal([]byte(h.do(t, shared.Berth, "cdi", "list", "--json")), &ours))
			var want []string
			for _, d := range ours.Devices {
				want = append(want, d.Name)
			}
			slices.Sort(want)
			for _, name := range []string{"berth/gpus=2", "berth/gpus=h100:8", "berth/with=gds", "nvidia.com/gpu=all"} {
				if !slices.Contains(want, name) {
					t.Errorf("%s isn't among berth's devices", name)
				}
			}
			var info struct{ DiscoveredDevices []struct{ Source, ID string } }
			rig.Must(t, json.Unmarshal([]byte(h.do(t, "docker", "info", "--format", "json")), &info))
			var got []string
			for _, d := range info.DiscoveredDevices {
				got = append(got, d.ID)
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("devices (-berth +docker):\n%s", diff)
			}
		})
	}
}

// A container with one of berth's CDI devices has GPUs of its own until it ends: under a plain
// runtime by the hook, under berth's runtime by the wrapper.
func TestLease(t *testing.T) {
	eachEngine(t, []string{"runc", "crun", "berth"}, func(t *testing.T, p place) {
		p.usable(t)
		p.start(t, containerOptions{}).end() // engines make some directories at the first use
		before := p.footprint(t)
		a := p.start(t, containerOptions{devices: []string{"berth/gpus=1"}})
		b := p.start(t, containerOptions{devices: []string{"berth/gpus=1"}})
		own, other := a.opens(), b.opens()
		if len(own) != 1 || len(other) != 1 || own[0] == other[0] {
			t.Errorf("one opens %v, the other %v", own, other)
		}
		a.checkDriverFiles()
		leases := p.live(t)
		if len(leases) != 2 || len(leases[0].Devices) != 1 || len(leases[1].Devices) != 1 {
			t.Errorf("leases: %+v", leases)
		}
		for _, l := range leases {
			if hook := l.Owner.EntryPoint == "hook"; hook != (p.runtime != "berth") {
				t.Errorf("the lease came by the entry point %s", l.Owner.EntryPoint)
			}
		}

		held := p.footprint(t)
		busy := p.wantRefused(t, containerOptions{devices: []string{"berth/gpus=7"}})
		p.checkReason(t, busy, "request 7: 7 asked, 6 of 8 free")
		p.waitForLeases(t, held, 2)

		a.end()
		p.waitForLeases(t, nil, 1)
		b.end()
		p.waitForLeases(t, before, 0)
	})
}

// NVIDIA's names mean exactly the named devices, several of berth's devices make one lease, and
// features are added to it.
func TestNVIDIANames(t *testing.T) {
	eachEngine(t, []string{"runc", "berth"}, func(t *testing.T, p place) {
		for _, tt := range []struct {
			name string
			wish containerOptions
			want []string
		}{
			{"one of NVIDIA's", containerOptions{devices: []string{"nvidia.com/gpu=3"}}, []string{"nvidia3"}},
			{"two of NVIDIA's", containerOptions{devices: []string{"nvidia.com/gpu=1", "nvidia.com/gpu=6"}}, []string{"nvidia1", "nvidia6"}},
			{"one by index", containerOptions{devices: []string{"berth/gpus=gpu5"}}, []string{"nvidia5"}},
			{"all", containerOptions{devices: []string{"berth/gpus=all"}}, []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6", "nvidia7"}},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := p.start(t, tt.wish)
				if diff := cmp.Diff(tt.want, c.opens()); diff != "" {
					t.Errorf("GPUs (-want +got):\n%s", diff)
				}
				if leases := p.live(t); len(leases) != 1 || len(leases[0].Devices) != len(tt.want) {
					t.Errorf("leases: %+v", leases)
				}
				c.end()
				p.waitForLeases(t, nil, 0)
			})
		}
		t.Run("a feature", func(t *testing.T) {
			c := p.start(t, containerOptions{devices: []string{"berth/gpus=1", "berth/with=gdrcopy"}})
			if got := c.ask("open /dev/gdrdrv"); got[0] != "ENXIO ENXIO ENXIO" {
				t.Errorf("/dev/gdrdrv: %s", got)
			}
			if got := c.opens(); len(got) != 1 {
				t.Errorf("it opens %v", got)
			}
			c.end()
			p.waitForLeases(t, nil, 0)
		})
		t.Run("requests that contradict", func(t *testing.T) {
			text := p.wantRefused(t, containerOptions{devices: []string{"berth/gpus=1", "berth/gpus=2"}})
			p.checkReason(t, text, "contradicting requests")
			p.waitForLeases(t, nil, 0)
		})
	})
}

// usable skips the test where the machine's limits make it impossible without berth as well.
func (p place) usable(t *testing.T) {
	t.Helper()
	if p.name == "docker" && p.runtime == "crun" && p.cgroup == "v2" &&
		!strings.Contains(p.do(t, "cat", "/sys/fs/cgroup/cgroup.controllers"), "io") {
		t.Skip("crun wants the io controller for docker's containers, and cgroup v2 has none on this machine")
	}
}

// checkDriverFiles checks that the driver's libraries are there, and that no user inside can write to them
// or owns them.
func (c *container) checkDriverFiles() {
	c.t.Helper()
	if got := c.ask("open /usr/local/nvidia/lib64/libcuda.so.1"); got[0] != "ok EACCES EACCES" {
		c.t.Errorf("libcuda.so.1: %s", got)
	}
}

// checkReason checks that one line of the engine's output has the reason.
func (p place) checkReason(t *testing.T, text, reason string) {
	t.Helper()
	count := 0
	for line := range strings.Lines(text) {
		if strings.Contains(line, reason) {
			count++
		}
	}
	if p.runtime == "crun" {
		return // it discards the output of hooks
	}
	if count != 1 {
		t.Errorf("%d lines have %q:\n%s", count, reason, text)
	}
}

// waitForLeases waits until there are so many leases, and no leftovers. Engines clean up after their
// commands have returned.
func (p place) waitForLeases(t *testing.T, before []string, leases int) {
	t.Helper()
	var diff string
	var live []lease
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		live, diff = p.live(t), ""
		if before != nil {
			diff = cmp.Diff(before, p.footprint(t))
		}
		if len(live) == leases && diff == "" {
			return
		}
	}
	t.Errorf("%d leases, and not %d: %+v; left on the host (-before +after):\n%s", len(live), leases, live, diff)
}
