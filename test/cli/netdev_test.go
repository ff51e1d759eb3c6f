package cli

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNetDevices: both runtimes give the container a CDI device's network interface, and its lease
// keeps others from it meanwhile.
func TestNetDevices(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.cdi("nic.yaml", `cdiVersion: "1.1.0"
kind: vendor.example/nic
devices:
- name: port0
  containerEdits: {netDevices: [{hostInterfaceName: enp1, name: eth1}]}
`)
	// The test and its processes are in a network namespace that ends with the test.
	runtime.LockOSThread()
	check(t, unix.Unshare(unix.CLONE_NEWNET))
	ip := func(line string) string {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	for _, name := range []string{"runc", "crun"} {
		ip("link add enp1 type veth peer name peer1")
		ip("addr add 192.0.2.1/24 dev enp1")
		config := configured(t, "runtime = '"+name+"'\n[policy]\ncdi = ['*']\n")
		do := func(network string) result {
			return n.berth("--config", config, "run", "--network", network, "--gpus", "1,vendor.example/nic=port0", image(), "sh", "-c",
				"ls /sys/class/net; ip -o addr show dev eth1 | grep -o '192.0.2.[0-9/]*'; ip link show dev eth1 | grep -o ',UP'")
		}
		do("host").fails(125, "berth: network device enp1: the container has the host's network namespace, and none of its own")
		if now := ip("-o addr show dev enp1"); !strings.Contains(now, "192.0.2.1/24") {
			t.Errorf("%s: the host's interface is now %s", name, now)
		}
		do("none").is(0, "eth1\nlo\n192.0.2.1/24\n,UP\n", "")
		do("none").fails(125, "berth: network device enp1: it isn't in the host's network namespace") // a veth ends with its namespace
		n.checkClean(t)
	}
}
