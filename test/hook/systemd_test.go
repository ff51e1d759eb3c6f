package hook

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// If systemd manages a container's cgroup, it gets a drop-in with the rules that the hook has set,
// because it would restore the engine's rules at its next reload. The next container's start
// removes the drop-ins of deleted ones.
func TestSystemd(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		units := w.Path("/run/systemd/system")
		if _, err := os.Stat(units); err == nil {
			t.Fatal("the node has the machine's systemd")
		}
		rig.Must(t, os.MkdirAll(units, 0o755))
		t.Cleanup(func() { rig.Must(t, os.RemoveAll(units)) })
		scoped := func() (c *container, unit string) {
			spec := withHooks(w.plain(t), entry(config, "createRuntime", "--request", "1"), "createRuntime")
			c = prepare(t, w, w.runtime, config, spec)
			unit = c.id + ".scope"
			spec.Linux.CgroupsPath = "/" + c.id + ".slice/" + unit
			c.write(spec)
			t.Cleanup(func() {
				// On a node without a unified tree crun writes into its mount point.
				w.Do(t, "sh", "-c", "test $(stat -fc %T /sys/fs/cgroup/unified) = cgroup2fs || rm -rf /sys/fs/cgroup/unified/"+c.id+".slice")
				w.removeCgroups(t, c.id+".slice")
			})
			if said := c.create(); said.Code != 0 {
				t.Fatalf("create: exit code %d: %s", said.Code, said.Err)
			}
			if said := c.act("start", c.id); said.Code != 0 {
				t.Fatalf("start: %s", said.Err)
			}
			return c, unit
		}
		first, unit := scoped()
		text, err := os.ReadFile(units + "/" + unit + ".d/50-berth-devices.conf")
		rig.Must(t, err)
		own := first.nodesOfLease()
		for _, d := range w.accelerators(t) {
			line := fmt.Sprintf("DeviceAllow=/dev/char/%d:%d rw\n", d.major, d.minor)
			if want := slices.Contains(own, d.path); strings.Contains(string(text), line) != want {
				t.Errorf("systemd is to know that %s is allowed: %v; it reads %s", d.path, want, text)
			}
		}
		first.delete()
		second, other := scoped()
		if _, err := os.Stat(units + "/" + unit + ".d"); !os.IsNotExist(err) {
			t.Errorf("what was said of %s is left: %v", unit, err)
		}
		if _, err := os.Stat(units + "/" + other + ".d"); err != nil {
			t.Error(err)
		}
		second.delete()
		second.checkNothingLeft()
	})
}
