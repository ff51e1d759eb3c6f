package devicerules

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// The launcher, with everything that users may give a task: the host's /dev, single nodes of it,
// and an image with nodes of its own.
func TestLauncher(t *testing.T) {
	for _, tt := range []struct {
		profile string
		request string
		want    int
	}{
		{"dgx-h100", "1", 1}, {"dgx-h100", "2", 2}, {"dgx-h100", "6,3", 2}, {"dgx-a100-mig", "1g.10gb", 1},
	} {
		t.Run(tt.profile+" "+tt.request, func(t *testing.T) {
			eachWorld(t, tt.profile, func(t *testing.T, w *world) {
				kinds := map[string][]string{"thrown away": nil, "written to": {"--rw"}}
				if tt.request == "2" { // the flags are independent of the number of GPUs
					kinds["administrator"] = []string{"--cap-add", "SYS_ADMIN"}
					kinds["privileged"] = []string{"--privileged"}
					kinds["unconfined"] = []string{"--security-opt", "seccomp=unconfined"}
				}
				for name, flags := range kinds {
					t.Run(name, func(t *testing.T) {
						c := run(t, w, w.root(t), tt.request, append(flags, w.volumes()...)...)
						if l := c.lease(); len(l.Devices) != tt.want {
							t.Fatalf("the lease is %+v", l)
						}
						c.checkTaskRules(ways{own: w.nodesOfLease(t, c.lease()), bound: true})
					})
				}
			})
		})
	}
}

// volumes returns binds of the host's /dev, and of each accelerator's node.
func (w *world) volumes() []string {
	flags := []string{"-v", "/dev:/host/dev"}
	for _, d := range w.devices {
		flags = append(flags, "-v", d.path+":/stolen"+d.path)
	}
	return flags
}

func (c *container) checkTaskRules(x ways) {
	c.t.Helper()
	c.checkNoMknod()
	c.checkDevices("at start", x)
	c.update()
	c.checkDevices("after update", x)
	c.checkDevicesOfExec("in exec", x)
	c.checkBesideNeighbour(x)
}

// Whatever a task of berth run is allowed, it reaches no processes or files of others by system
// calls that only some arguments make harmful: it gets no pidfd of a listener of the host, no lease
// on a file of root's that is bound read-only, and no events of others' processes. Nor does it
// watch a whole file system, or open other mount namespaces.
func TestLauncherHoldsCalls(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth-") // a socket's path is short
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(dir)) })
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	rig.Must(t, err)
	t.Cleanup(func() { listener.Close() })
	rig.Must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("data"), 0o644))
	capable := []string{"--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--cap-add", "PERFMON"}
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for name, flags := range map[string][]string{
			"as usual": nil, "capable": capable, "privileged": {"--privileged"},
			"unconfined": slices.Concat(capable, []string{"--security-opt", "seccomp=unconfined"}),
		} {
			t.Run(name, func(t *testing.T) {
				root := w.root(t)
				rig.Must(t, os.Mkdir(filepath.Join(root, "shared"), 0o755))
				c := run(t, w, root, "1", append(flags, "-v", dir+":/shared:ro")...)
				all, own := "EPERM", "ok"
				if flags == nil { // without CAP_PERFMON nothing can be sampled
					own = "EPERM"
				}
				got := c.ask("pidfd /shared/socket", "lease /shared/file", "sample -1", "sample 0", "watch")
				if d := cmp.Diff([]string{"ENOPROTOOPT", "EPERM", all, own, "EPERM"}, got); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				// Without CAP_SYS_ADMIN the kernel chooses the error.
				if got := c.ask("namespaces")[0]; got == "ok" || flags != nil && got != "EPERM" {
					t.Errorf("other mount namespaces: %s", got)
				}
			})
		}
	})
}

// Of four tasks at once, through both entry points, no two share a device, and each opens only its
// own.
func TestTasksAreDisjoint(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		all := []*container{
			create(t, w, config, requesting(w.listedSpec(t), "2")),
			run(t, w, w.root(t), "2", w.volumes()...),
			create(t, w, config, requesting(privileged(w.listedSpec(t)), "2")),
			run(t, w, w.root(t), "2", w.volumes()...),
		}
		holder := map[string]string{}
		for _, c := range all {
			for _, d := range c.lease().Devices {
				gpu := filepath.Base(nodesOf(w.State, d.UUID)[0])
				if holder[gpu] != "" {
					t.Errorf("%s and %s have %s", holder[gpu], c.id, gpu)
				}
				holder[gpu] = c.id
			}
		}
		if len(holder) != 8 {
			t.Errorf("of 8 GPUs these are held: %v", holder)
		}
		for _, c := range all {
			c.checkDevices("beside three others", ways{own: w.nodesOfLease(t, c.lease()), bound: true, fuse: !c.launched})
		}
		fifth := w.Run(t, w.Command(w.Berth, "--config", config, "run", "--gpus", "1", "--no-wait", w.root(t), "/probe"))
		if fifth.Code != 75 {
			t.Errorf("a task for which nothing is left: %+v", fifth)
		}
	})
}

// A task without a request gets no device: nodes that its user binds exist, and can't be opened.
func TestLauncherWithoutRequest(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		c := newContainer(t, w, config)
		c.launched = true
		args := append([]string{"--config", config, "run", "--interactive", "--network", "none"}, w.volumes()...)
		cmd := w.Command(w.Berth, append(args, w.root(t), "/probe")...)
		done := c.pipes(cmd)
		rig.Must(t, cmd.Start())
		done()
		tries := c.attempts()
		answers := c.ask(commandsOf(tries)...)
		rig.Must(t, c.commands.Close())
		rig.Must(t, cmd.Wait())
		c.compareResults("without a request", ways{kept: true}, tries, answers)
	})
}
