package features

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// sys is an engine's mount of /sys, which in a simulated node shows the kernel's devices: no RDMA
// at all. berth makes the node's adapters visible.
func sys(s *specs.Spec) {
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}})
}

// hostSys is an engine's mount of /sys without a network namespace: it has all adapters.
func hostSys(s *specs.Spec) {
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "ro"}})
}

// adapters are those of the server with these names.
func (d entryPoint) adapters(t *testing.T, names ...string) (all []sim.HCA) {
	t.Helper()
	for _, h := range d.State.Blueprint().HCAs {
		if slices.Contains(names, h.Name) {
			all = append(all, h)
		}
	}
	if len(all) != len(names) {
		t.Fatalf("the server has not all of %v", names)
	}
	return all
}

// TestNICs: a container with leased adapters can open their nodes and no others, and sees only
// these where libraries look, with all links from there to the GPUs.
func TestNICs(t *testing.T) {
	for _, tt := range []struct {
		request string
		names   []string
		change  func(*specs.Spec)
	}{
		{"device=0,1,nics=auto", []string{"mlx5_0", "mlx5_3"}, sys},
		{"device=3,nics=1", []string{"mlx5_5"}, hostSys},
		{"nics=mlx5_8+mlx5_9", []string{"mlx5_8", "mlx5_9"}, sys},
	} {
		t.Run(tt.request, func(t *testing.T) {
			eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: tt.request, change: tt.change})
				if strings.Contains(tt.request, "device") {
					c.opens()
				} else {
					c.checkOpensAdapters(d.adapters(t, tt.names...))
				}
				c.checkAdapters(d.adapters(t, tt.names...))
				c.checkReasons(d.adapters(t, tt.names...))
				c.end()
			})
		})
	}
}

// checkReasons checks berth's reasons of what the container has.
func (c *container) checkReasons(all []sim.HCA) {
	c.t.Helper()
	if c.d.way != byRun {
		return
	}
	said := c.d.Do(c.t, c.d.Berth, "inspect", c.id)
	for _, h := range all {
		node := fmt.Sprintf(`"name": "/dev/infiniband/uverbs%d",\s*"source": "c 231:%d",\s*"why": "RDMA device %s:1"`, h.Uverbs, 192+h.Uverbs, h.Name)
		if !regexp.MustCompile(node).MatchString(said) {
			c.t.Errorf("inspect says nothing like %s: %s", node, said)
		}
	}
	for _, what := range []string{`"name": "/sys/class/infiniband"`, `"name": "NCCL_IB_HCA==`, `"name": "RLIMIT_MEMLOCK"`} {
		if !strings.Contains(said, what) {
			c.t.Errorf("inspect has no %s: %s", what, said)
		}
	}
}

// checkOpensAdapters is opens for a lease without a GPU.
func (c *container) checkOpensAdapters(all []sim.HCA) {
	c.t.Helper()
	own := map[string]bool{}
	for _, h := range all {
		own[fmt.Sprintf("/dev/infiniband/uverbs%d", h.Uverbs)] = true
	}
	c.checkOpens(own)
}

// checkAdapters compares the adapters that the container finds with the expected ones.
func (c *container) checkAdapters(all []sim.HCA) {
	c.t.Helper()
	var names, nodes, ports []string
	for _, h := range all {
		names, nodes = append(names, h.Name), append(nodes, fmt.Sprintf("uverbs%d", h.Uverbs))
		ports = append(ports, h.Name+":1")
		own := "/sys/class/infiniband/" + h.Name
		c.wantAnswer("cat "+own+"/node_guid", h.GUID())
		c.wantAnswer("cat "+own+"/device/numa_node", fmt.Sprint(c.d.State.Blueprint().Bridges[strings.Fields(h.Path)[0]]))
		c.wantAnswer("cat "+own+"/ports/1/gid_attrs/ndevs/0", h.Netdev)
		c.wantAnswer("cat /sys/bus/pci/devices/"+sim.PCI(h.Path)+"/infiniband_verbs/"+nodes[len(nodes)-1]+"/ibdev", h.Name)
	}
	slices.Sort(names)
	slices.Sort(nodes)
	c.wantAnswer("ls /sys/class/infiniband", names...)
	c.wantAnswer("ls /sys/class/infiniband_verbs", append([]string{"abi_version"}, nodes...)...)
	c.wantAnswer("ls /sys/class/infiniband_mad")
	c.wantAnswer("ls /dev/infiniband", append([]string{"rdma_cm"}, nodes...)...)
	c.wantAnswer("cat /sys/class/infiniband_verbs/abi_version", "6")
	c.wantAnswer("cat /sys/module/nvidia_peermem/initstate", "live")
	if c.d.way == byHook { // which can't change a process's environment
		return
	}
	if got := c.hcas(); sorted(got) != sorted("="+strings.Join(ports, ",")) {
		c.t.Errorf("NCCL_IB_HCA: %q, want the ports %v", got, ports)
	}
	c.checkLimits()
}

// checkLimits compares the container's limits with the highest that root on this machine may give, and
// checks that a limit that is too low is reported.
func (c *container) checkLimits() {
	c.t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	rig.Must(c.t, err)
	_, caps, _ := strings.Cut(string(status), "CapEff:\t")
	mask, err := strconv.ParseUint(caps[:16], 16, 64)
	rig.Must(c.t, err)
	var locked, files unix.Rlimit
	rig.Must(c.t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked))
	rig.Must(c.t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	want := map[string]string{"locked": "unlimited", "open": fmt.Sprint(min(files.Max, 128<<10))}
	low := ""
	switch {
	case mask&(1<<unix.CAP_SYS_RESOURCE) != 0:
		want["open"] = fmt.Sprint(128 << 10)
	case locked.Max != unix.RLIM_INFINITY:
		want["locked"], low = fmt.Sprint(locked.Max), fmt.Sprintf("memlock is %d bytes", locked.Max)
	}
	got := map[string]string{}
	for _, line := range c.ask("cat /proc/self/limits") {
		if f := strings.Fields(strings.TrimPrefix(line, "Max ")); want[f[0]] != "" {
			got[f[0]] = f[2]
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		c.t.Errorf("limits (-want +got):\n%s", d)
	}
	if said := c.loggedRemovals("prepared", c.lease().ID); !strings.Contains(said, low) {
		c.t.Errorf("the log says %q of the container, and not that %s", said, low)
	}
}

// hcas returns the adapters that the container's environment names to NCCL. No other variable of
// NCCL is set: no transports, algorithms or GID indexes.
func (c *container) hcas() (value string) {
	c.t.Helper()
	for _, entry := range c.ask("cat /proc/self/environ") {
		name, v, _ := strings.Cut(entry, "=")
		switch {
		case name == "NCCL_IB_HCA":
			value = v
		case strings.HasPrefix(name, "NCCL_"), strings.HasPrefix(name, "RCCL_"), strings.HasPrefix(name, "UCX_"):
			c.t.Errorf("%s: what NCCL does is the program's to say, or the admin's", entry)
		}
	}
	return value
}

// sorted returns a list for NCCL in a fixed order.
func sorted(list string) string {
	names, exact := strings.CutPrefix(list, "=")
	all := strings.Split(names, ",")
	slices.Sort(all)
	return fmt.Sprint(exact, all)
}

// TestNoNICs: a container without leased adapters can open none, and sees none although its /sys is
// the host's: NCCL would try them all.
func TestNoNICs(t *testing.T) {
	eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
		c := d.run(t, task{request: "2", change: hostSys})
		c.opens()
		for _, list := range []string{"infiniband", "infiniband_verbs", "infiniband_mad"} {
			c.wantAnswer("ls /sys/class/" + list)
		}
		if got := c.hcas(); got != "" {
			t.Errorf("NCCL_IB_HCA: %q", got)
		}
		if c.exists("/dev/infiniband") {
			t.Error("there is a /dev/infiniband")
		}
		c.end()
	})
}

// TestNICsOfOthers: each of two containers has its own adapters, whatever the other one has, and a
// container's own choice for NCCL is kept.
func TestNICsOfOthers(t *testing.T) {
	eachKind(t, "dgx-h100", oneOfEach(), func(t *testing.T, d entryPoint) {
		one := d.run(t, task{request: "nics=mlx5_0", change: sys})
		two := d.run(t, task{request: "nics=mlx5_0+mlx5_4", change: hostSys, env: []string{"NCCL_IB_HCA=mlx5"}})
		one.checkOpensAdapters(d.adapters(t, "mlx5_0"))
		two.checkOpensAdapters(d.adapters(t, "mlx5_0", "mlx5_4"))
		one.wantAnswer("ls /sys/class/infiniband", "mlx5_0")
		two.wantAnswer("ls /sys/class/infiniband", "mlx5_0", "mlx5_4")
		if got := one.hcas(); got != "=mlx5_0:1" && d.way != byHook {
			t.Errorf("NCCL_IB_HCA of one: %q", got)
		}
		if got := two.hcas(); got != "mlx5" {
			t.Errorf("NCCL_IB_HCA of two: %q", got)
		}
		for _, c := range []*container{one, two} {
			_ = c.commands.Close()
			_ = c.finish()
		}
	})
}

// TestRoCE: an adapter with addresses of a network interface is useless in a network namespace
// without the interface, and works in the host's.
func TestRoCE(t *testing.T) {
	eachKind(t, "dgx-h100", oneOfEach(), func(t *testing.T, d entryPoint) {
		d.wantRefused(t, task{request: "nics=mlx5_1", change: sys}, "RDMA device mlx5_1 is RoCE and uses the addresses of eth1")
		if d.way == byRun {
			return // which is started with a network of its own here
		}
		c := d.run(t, task{request: "nics=mlx5_1", change: func(s *specs.Spec) {
			hostSys(s)
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
		}})
		c.checkOpensAdapters(d.adapters(t, "mlx5_1"))
		c.end()
	})
}

// TestExclusiveRDMA: where each adapter is in one network namespace, it is moved; a container to
// which it can't be moved isn't created. (The kernel under this node has no RDMA.)
func TestExclusiveRDMA(t *testing.T) {
	eachKind(t, "dgx-h100", oneOfEach(), func(t *testing.T, d entryPoint) {
		mode := d.Path("/sys/module/ib_core/parameters/netns_mode")
		rig.Must(t, os.WriteFile(mode, []byte("N\n"), 0o644))
		t.Cleanup(func() { rig.Must(t, os.WriteFile(mode, []byte("Y\n"), 0o644)) })
		_, said := d.try(t, task{request: "nics=mlx5_0", change: sys})
		if said.Code == 0 || !strings.Contains(said.Err, "the kernel has no RDMA") {
			t.Errorf("exit code %d: %s", said.Code, said.Err)
		}
	})
}

// TestNICsPrivileged: adapters that an engine opens with --privileged, or brings with --device, are
// closed except the leased ones; without a lease all are closed.
func TestNICsPrivileged(t *testing.T) {
	eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
		everything := d.privileged(t)
		c := d.run(t, task{request: "nics=mlx5_0+mlx5_9", change: func(s *specs.Spec) { hostSys(s); everything(s) }})
		c.checkOpensAdapters(d.adapters(t, "mlx5_0", "mlx5_9"))
		c.end()
		brought := d.device(t, "/dev/infiniband/")
		c = d.run(t, task{change: func(s *specs.Spec) { hostSys(s); brought(s) }})
		c.checkOpens(map[string]bool{})
		c.end()
	})
}
