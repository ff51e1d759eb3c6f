package devicerules

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// For a container without a request that could open everything, the guard closes the accelerators
// and nothing else.
func TestGuard(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for name, spec := range w.hostileSpecs(t) {
			t.Run(name, func(t *testing.T) {
				c := create(t, w, w.configure(t, ""), spec)
				c.checkNoMknod()
				x := ways{bound: true, fuse: true}
				c.checkDevices("at start", x)
				c.checkBindsRemoved()
				c.update()
				c.checkDevices("after update", x)
				c.checkDevicesOfExec("in exec", x)
				c.delete()
			})
		}
	})
}

// With the guard off, the runtime reads exactly what the engine wrote.
func TestGuardTurnedOff(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		spec := privileged(withDev(w.plainSpec(t)))
		c := create(t, w, w.configure(t, "[policy]\nguard = false\n"), spec)
		c.checkUnchanged()
		tries := c.attempts()
		x := ways{own: map[string]bool{}, mknod: true, fuse: true}
		for _, d := range w.devices {
			x.own[d.path] = true
		}
		want, got := c.expected(x), map[string]string{}
		for i, answer := range c.ask(commandsOf(tries)...) {
			got[tries[i].name] = answer
		}
		for _, d := range w.devices {
			want["node "+d.path] = "ENOENT" // no request
		}
		if d := differences(want, got); d != "" {
			t.Errorf("not what the spec says:%s", d)
		}
		c.delete()
	})
}

// checkUnchanged checks that the bundle is as the engine wrote it.
func (c *container) checkUnchanged() {
	c.t.Helper()
	var names []string
	entries, err := os.ReadDir(c.bundle)
	rig.Must(c.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if d := cmp.Diff([]string{"config.json", "pid", "state"}, names); d != "" {
		c.t.Errorf("files in the bundle (-want +got):\n%s", d)
	}
	if c.written != c.identifyConfig() {
		c.t.Error("config.json isn't what the engine wrote")
	}
}

// identifyConfig returns what identifies config.json: its bytes, and the file itself.
func (c *container) identifyConfig() string {
	c.t.Helper()
	data, err := os.ReadFile(c.config())
	rig.Must(c.t, err)
	info, err := os.Stat(c.config())
	rig.Must(c.t, err)
	return fmt.Sprintf("%x %v %v", sha256.Sum256(data), info.Mode(), info.ModTime().UnixNano())
}

// Without a request and an accelerator the bundle isn't changed.
func TestUnconcernedBundleIsUnchanged(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		fuse := int64(229)
		spec := w.plainSpec(t)
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: ptr(10), Minor: &fuse, Access: "rwm"})
		for name, s := range map[string]*specs.Spec{"plain": spec, "with a bind of /dev": withDev(spec)} {
			t.Run(name, func(t *testing.T) {
				c := create(t, w, w.configure(t, ""), s)
				c.checkUnchanged()
				if l := c.lease(); l.ID != "" {
					t.Errorf("it has a lease: %+v", l)
				}
				// The container keeps all its capabilities.
				x := ways{mknod: true, fuse: true}
				tries := c.attempts()
				answers := c.ask(commandsOf(tries)...)
				if name != "plain" {
					c.compareResults("in a container of no concern", x, tries, answers)
				}
				c.delete()
			})
		}
	})
}

func ptr(n int64) *int64 { return &n }

// A lease's changes of the bundle are undone at its end.
func TestBundleIsPutBack(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		c := create(t, w, w.configure(t, ""), requesting(w.listedSpec(t), "1"))
		if c.identifyConfig() == c.written {
			t.Fatal("config.json was not rewritten")
		}
		if _, err := os.Stat(filepath.Join(c.bundle, "config.json.berth")); err != nil {
			t.Fatal(err)
		}
		c.delete()
		c.checkUnchanged()
	})
}

// The display of a server's management controller has the major of GPUs' graphics nodes, and stays
// open to the container that was given it. A GPU's graphics node is closed.
func TestDisplay(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		const device = "/sys/bus/pci/devices/0000:02:00.0"
		w.Do(t, "sh", "-c", "mkdir -p "+device+"/drm/card9 /sys/class/drm/card9 && cd "+device+
			" && echo 0x1a03 >vendor && echo 226:9 >drm/card9/dev && ln -sfn "+device+" /sys/class/drm/card9/device")
		with := func(minors ...int64) *specs.Spec {
			spec := w.plainSpec(t)
			for _, minor := range minors {
				spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices,
					specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: ptr(226), Minor: &minor, Access: "rw"})
			}
			return spec
		}
		c := create(t, w, w.configure(t, ""), with(9))
		c.checkUnchanged()
		c.delete()
		c = create(t, w, w.configure(t, ""), with(9, 0))
		data, err := os.ReadFile(c.config())
		rig.Must(t, err)
		var got specs.Spec
		rig.Must(t, json.Unmarshal(data, &got))
		var open []int64
		for _, r := range got.Linux.Resources.Devices {
			if r.Allow && r.Type == "c" && r.Major != nil && *r.Major == 226 {
				open = append(open, *r.Minor)
			}
		}
		if !slices.Equal(open, []int64{9}) {
			t.Errorf("open are 226:%v, want the display's alone", open)
		}
		c.delete()
	})
}
