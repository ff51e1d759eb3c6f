package hook

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// TestLostLedger: while the ledger is lost, the devices that a hook has given to a container are leased to nobody else and
// stay open to the container, also if the spec allows all devices. The ledger is rebuilt from the note at the container's
// cgroup. The note ends with the container.
func TestLostLedger(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for _, stage := range []string{"createRuntime", "prestart"} {
			for name, rules := range map[string][]specs.LinuxDeviceCgroup{
				"no devices": {{Allow: false, Access: "rwm"}}, "all devices": {{Allow: true, Access: "rwm"}},
			} {
				t.Run(stage+" "+name, func(t *testing.T) {
					config := w.configure(t, "")
					hooked := func(request string) *specs.Spec {
						spec := withHooks(w.plain(t), entry(config, stage, "--request", request), stage)
						spec.Linux.Resources.Devices = rules
						return spec
					}
					c := run(t, w, w.runtime, config, hooked("2"))
					before, nodes := c.lease(), c.nodesOfLease()
					w.Do(t, "rm", "-rf", "/run/berth")
					said := w.Run(t, w.Command(w.Berth, "alloc", "7", "true"))
					if said.Code != 125 || !strings.Contains(said.Err, "berth: the ledger is lost: ") || !strings.Contains(said.Err, "hook "+c.id[:12]) {
						t.Errorf("alloc: %+v", said)
					}
					if said := prepare(t, w, w.runtime, config, hooked("1")).create(); said.Code == 0 || !strings.Contains(said.Err, "the ledger is lost") {
						t.Errorf("the next container: %+v", said)
					}
					w.Do(t, w.Berth, "discover") // which closes devices to containers without a lease
					for _, node := range nodes {
						if got := c.ask("open " + node)[0]; !strings.Contains(got, "ENXIO") { // the rules allow it, and no driver answers
							t.Errorf("while the ledger is lost, %s: %s", node, got)
						}
					}
					if said := w.Run(t, w.Command(w.Berth, "repair")); said.Code != 0 || !strings.Contains(said.Err, "; rebuilt with 1 lease\n") {
						t.Errorf("repair: %+v", said)
					}
					after := c.lease()
					if after.ID != before.ID || len(after.Devices) != 2 || after.Devices[0].UUID != before.Devices[0].UUID || after.Devices[1].UUID != before.Devices[1].UUID {
						t.Errorf("leased is %+v, before %+v", after, before)
					}
					if said := w.Run(t, w.Command(w.Berth, "alloc", "7", "true")); said.Code != 75 || !strings.Contains(said.Err, "6 of 8 free") {
						t.Errorf("alloc 7: %+v", said)
					}
					w.Do(t, w.Berth, "alloc", "6", "true")
					c.delete()
					c.checkNothingLeft()
					w.Do(t, "rm", "-rf", "/run/berth")
					w.Do(t, w.Berth, "alloc", "8", "true")
				})
			}
		}
	})
}

// TestUnknownNote: a container whose note names a GPU that the node doesn't have keeps a lost ledger from being rebuilt.
func TestUnknownNote(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		c := run(t, w, w.runtime, config, withHooks(w.plain(t), entry(config, "createRuntime", "--request", "1"), "createRuntime"))
		tree := "/sys/fs/cgroup/"
		if w.cgroup == "v1" {
			tree += "devices/"
		}
		setNote(t, w.Path(tree+c.id), c.lease().ID+" mnt:[1] GPU-none 0")
		w.Do(t, "rm", "-rf", "/run/berth")
		for _, words := range [][]string{{"alloc", "1", "true"}, {"repair"}} {
			said := w.Run(t, w.Command(w.Berth, words...))
			if said.Code == 0 || !strings.Contains(said.Err, "GPU-none is of no GPU that the node has") {
				t.Errorf("berth %q: %+v", words, said)
			}
		}
		c.delete()
		w.Do(t, w.Berth, "alloc", "8", "true")
	})
}

func setNote(t *testing.T, dir, text string) {
	t.Helper()
	rig.Must(t, unix.Setxattr(dir, "trusted.berth", []byte(text), 0))
}
