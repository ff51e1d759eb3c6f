package cli

import (
	"strings"
	"syscall"
	"testing"
)

// vendor is the CDI spec of another vendor: a device with a node of the host, an
// environment, a mount and a group.
const vendor = `cdiVersion: "0.7.0"
kind: vendor.example/nic
containerEdits: {env: [NIC=vendor]}
devices:
- name: port0
  containerEdits:
    env: [PORT=0]
    deviceNodes: [{path: /dev/port0, hostPath: /dev/gdrdrv}]
    mounts: [{hostPath: /etc/hostname, containerPath: /nic/name, options: [ro, bind]}]
    additionalGids: [4242]
- name: port1
  containerEdits: {env: [PORT=1]}
`

// cdi writes a spec file of the node.
func (n *node) cdi(name, text string) {
	n.t.Helper()
	n.run("sh", "-c", "mkdir -p /etc/cdi && printf %s \"$0\" >/etc/cdi/"+name, text).is(0, "", "")
}

// TestCDIMenu: berth's CDI specs follow the node's devices, and other specs with the same names are
// replaced or respected, as asked.
func TestCDIMenu(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-a100-mig")
	n.berth("cdi", "list").is(0, "there are no CDI devices; berth cdi generate writes specs of berth's devices\n", "")
	n.berth("cdi", "generate").is(0, "/etc/cdi/berth-gpus.json\n/etc/cdi/berth-with.json\n", "")
	menu := func() string { return n.read("/etc/cdi/berth-gpus.json") }
	before := menu()
	for _, name := range []string{`"name": "1"`, `"name": "all"`, `"name": "a100:2"`, `"name": "1g.10gb"`, `"--request"`, programs + "/berth-hook"} {
		if !strings.Contains(before, name) {
			t.Errorf("the menu has no %s:\n%s", name, before)
		}
	}
	n.berth("discover", "--quiet").is(0, "", "")
	if menu() != before {
		t.Error("the same node has another menu")
	}
	n.berth("cdi", "validate").is(0, "the CDI specs in /etc/cdi and /var/run/cdi are valid\n", "")
	n.control("mig", "5", "3g.40gb")
	n.berth("discover", "--quiet").is(0, "", "")
	if menu() == before {
		t.Error("the MIG layout has changed, and the menu hasn't")
	}

	n.cdi("nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits: {env: [A=b]}\n")
	n.berth("cdi", "generate", "--nvidia").fails(1,
		"berth: /etc/cdi/nvidia.yaml defines nvidia.com/gpu already, and engines refuse a device of two specs; --replace renames it")
	n.berth("cdi", "generate", "--nvidia", "--replace").is(0, "/etc/cdi/nvidia.yaml is now /etc/cdi/nvidia.yaml.replaced-by-berth\n"+
		"/etc/cdi/berth-gpus.json\n/etc/cdi/berth-with.json\n/etc/cdi/berth-nvidia-com-gpu.json\n", "")
	n.berth("cdi", "generate", "--nvidia").is(0, "/etc/cdi/berth-gpus.json\n/etc/cdi/berth-with.json\n/etc/cdi/berth-nvidia-com-gpu.json\n", "")
	n.berth("cdi", "remove").is(0, "/etc/cdi/nvidia.yaml is restored\n", "")
	if left := n.list("/etc/cdi"); len(left) != 1 || left[0] != "nvidia.yaml" {
		t.Errorf("left in /etc/cdi: %v", left)
	}
	n.berth("cdi", "frob").fails(2, `berth: there is no verb "frob"; berth cdi --help shows the usage`)
	n.berth("cdi", "generate", "--replace").fails(2, "berth: --replace goes with --nvidia; berth cdi generate --help shows the usage")
	n.checkClean(t)
}

// TestCDIDevices: another vendor's device is leased by its name where the admin allows it, comes
// with everything in its spec, and can't be leased twice.
func TestCDIDevices(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	n.cdi("nic.yaml", vendor)
	n.cdi("broken.json", "{")
	allowed := configured(t, "[policy]\ncdi = ['vendor.example/nic']\n")

	n.berth("run", "--gpus", "vendor.example/nic=port0", image(), "true").fails(125,
		"berth: request vendor.example/nic=port0: CDI device vendor.example/nic=port0: not allowed on this node: policy.cdi lists none")
	n.berth("--config", allowed, "run", "--gpus", "vendor.example/nic=port7", image(), "true").fails(125,
		"berth: CDI device vendor.example/nic=port7: no CDI spec defines it; there are vendor.example/nic=port0, vendor.example/nic=port1")

	const look = `echo $NIC $PORT; id -G; cat /nic/name; head -c1 /dev/port0 2>&1; head -c1 /dev/nvidia0 2>&1; ls /dev | grep -cx 'nvidia[0-9]'; true`
	n.berth("--config", allowed, "run", "--gpus", "vendor.example/nic=port0", image(), "sh", "-c", look).is(0,
		"vendor 0\n0 4242\n"+n.read("/etc/hostname")+
			"head: /dev/port0: No such device or address\nhead: /dev/nvidia0: No such file or directory\n0\n", "")
	n.berth("--config", allowed, "run", "--gpus", "1,vendor.example/nic=port1", image(), "sh", "-c", "echo $NIC $PORT; ls /dev | grep -x 'nvidia[0-9]'").is(0,
		"vendor 1\nnvidia0\n", "")

	holder := n.start("berth", "--config", allowed, "alloc", "1,vendor.example/nic=port0", "--", "sleep", "1000")
	n.waitForLeases(1)
	n.berth("--config", allowed, "run", "--gpus", "vendor.example/nic=port0", image(), "true").fails(75,
		"berth: request vendor.example/nic=port0: 1 asked, 0 of 1 free; held: GPU 0,vendor.example/nic=port0 by alloc sleep since TIME; wait for them with --wait, or see berth leases")
	n.berth("--config", allowed, "run", "--gpus", "vendor.example/nic=port1", image(), "true").is(0, "", "")
	if list := n.berth("--config", allowed, "cdi", "list"); !strings.Contains(list.stdout, "vendor.example/nic=port0  leased  alloc sleep  /etc/cdi/nic.yaml\n") ||
		!strings.Contains(list.stdout, "vendor.example/nic=port1  free    -            /etc/cdi/nic.yaml\n") ||
		!strings.Contains(list.stderr, "berth: CDI spec /etc/cdi/broken.json: ") {
		t.Errorf("list: %s%s", list.stdout, list.stderr)
	}
	holder.signal(syscall.SIGTERM)
	holder.wait()
	n.checkClean(t)
}

// TestCDIWithoutGPUs: a node without a driver has CDI devices all the same.
func TestCDIWithoutGPUs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "one-gpu", options{driverRoot: "/run/nvidia/driver"})
	n.cdi("nic.yaml", vendor)
	allowed := configured(t, "[policy]\ncdi = ['*']\n")
	n.berth("--config", allowed, "run", "--gpus", "vendor.example/nic=port1", image(), "sh", "-c", "echo $NIC $PORT").is(0, "vendor 1\n", "")
	n.checkClean(t)
}

// TestCDIPastTheLedger: a leased GPU can't be had by the name that another spec gives it, whatever
// the admin allows.
func TestCDIPastTheLedger(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	n.cdi("nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}\n")
	config := configured(t, "[policy]\ncdi = ['*']\n")
	n.berth("--config", config, "run", "--gpus", "nvidia.com/gpu=0", image(), "true").fails(125,
		"berth: CDI device nvidia.com/gpu=0: its node /dev/nvidia0 (c 195:0) belongs to a GPU or an RDMA NIC, which berth leases: request that instead (berth run --gpus, --nics)")
	n.berth("--config", config, "leases").is(0, "there are no leases and no waiting requests\n", "")
	n.berth("--config", config, "cdi", "list").is(0,
		"DEVICE            STATE    HOLDER  SPEC\nnvidia.com/gpu=0  refused  -       /etc/cdi/nvidia.yaml\n", "")
	if list := n.berth("--config", config, "cdi", "list", "--json"); !strings.Contains(list.stdout, `"reason": "CDI device nvidia.com/gpu=0: its node /dev/nvidia0 (c 195:0) belongs to a GPU`) {
		t.Errorf("list: %s%s", list.stdout, list.stderr)
	}
}

// TestCDIDeviceOfTwoNames: a device is leased once, by whichever of its names, and also when the spec of the name
// that it was leased by has been removed. Nodes that all devices of a spec have exclude nothing.
func TestCDIDeviceOfTwoNames(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	n.run("sh", "-c", "mknod /dev/npu0 c 511 0 && mknod /dev/npu1 c 511 1 && mknod /dev/npuctl c 511 255 && ln -s /dev /dev/by-path").is(0, "", "")
	n.cdi("acme.yaml", `cdiVersion: "0.7.0"
kind: acme.example/npu
containerEdits: {deviceNodes: [{path: /dev/npuctl}]}
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/npu0}, {path: /dev/infiniband/rdma_cm}]}
- name: "1"
  containerEdits: {deviceNodes: [{path: /dev/npu1}, {path: /dev/infiniband/rdma_cm}]}
- name: all
  containerEdits: {deviceNodes: [{path: /dev/npu0}, {path: /dev/npu1}]}
`)
	n.cdi("other.yaml", `cdiVersion: "0.7.0"
kind: other.example/npu
devices:
- name: path
  containerEdits: {deviceNodes: [{path: /dev/x, hostPath: /dev/by-path/npu0}]}
- name: number
  containerEdits: {deviceNodes: [{path: /dev/x, type: c, major: 511, minor: 0}]}
- name: control
  containerEdits: {deviceNodes: [{path: /dev/npuctl}]}
`)
	n.cdi("wide.yaml", `cdiVersion: "0.7.0"
kind: wide.example/npu
containerEdits: {deviceNodes: [{path: /dev/npu0}]}
devices:
- name: only
  containerEdits: {env: [A=b]}
`)
	config := configured(t, "[policy]\ncdi = ['*']\n")
	run := func(name string) result {
		t.Helper()
		return n.berth("--config", config, "run", "--gpus", name, image(), "true")
	}
	held := func(name string) {
		t.Helper()
		run(name).fails(75, "berth: request "+name+": 1 asked, 0 of 1 free; held: GPU acme.example/npu=0 by alloc sleep since TIME; wait for them with --wait, or see berth leases")
	}
	holder := n.start("berth", "--config", config, "alloc", "acme.example/npu=0", "--", "sleep", "1000")
	n.waitForLeases(1)
	for _, name := range []string{"acme.example/npu=0", "acme.example/npu=all", "other.example/npu=path", "other.example/npu=number", "wide.example/npu=only", "other.example/npu=control"} {
		held(name)
	}
	run("acme.example/npu=1").is(0, "", "")
	if list := n.berth("--config", config, "cdi", "list"); !strings.Contains(list.stdout, "acme.example/npu=all       leased  alloc sleep  /etc/cdi/acme.yaml\n") ||
		!strings.Contains(list.stdout, "acme.example/npu=1         free    -            /etc/cdi/acme.yaml\n") {
		t.Errorf("list: %s%s", list.stdout, list.stderr)
	}
	n.run("rm", "/etc/cdi/acme.yaml").is(0, "", "")
	held("other.example/npu=number")
	holder.signal(syscall.SIGTERM)
	holder.wait()
	run("other.example/npu=number").is(0, "", "")
	n.checkClean(t)
}

// TestCDIDeviceInsideLease: a task inside a lease gets the lease's CDI devices and no others, and no nodes that a
// changed spec gives them meanwhile.
func TestCDIDeviceInsideLease(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	config := configured(t, "[policy]\ncdi = ['*']\n")
	spec := func(minor string) string {
		return `{"cdiVersion":"0.7.0","kind":"acme.example/npu","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/npu","type":"c","major":511,"minor":` + minor + `}]}}]}`
	}
	n.cdi("acme.json", spec("0"))
	inner := []string{"berth", "--config", config, "run", "--gpus", "acme.example/npu=0", image(), "stat", "-c", "%t:%T", "/dev/npu"}
	n.berth(append([]string{"--config", config, "alloc", "acme.example/npu=0", "--"}, inner...)...).is(0, "1ff:0\n", "")
	n.berth(append([]string{"--config", config, "alloc", "1", "--"}, inner...)...).fails(125, "berth: request acme.example/npu=0: the lease ID around this process is without acme.example/npu=0")
	change := "printf %s \"$0\" >/etc/cdi/acme.json && exec \"$@\""
	n.berth(append([]string{"--config", config, "alloc", "acme.example/npu=0", "--", "sh", "-c", change, spec("1")}, inner...)...).fails(125,
		"berth: CDI device acme.example/npu=0: its device nodes have changed since it was leased; a new lease brings the new ones")
	n.checkClean(t)
}

// TestCDINodesOfLeasedDevices: no CDI device brings a node of a GPU, or of an RDMA adapter that has one holder at a time.
func TestCDINodesOfLeasedDevices(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	n.run("mknod", "/dev/innocent", "c", "195", "3").is(0, "", "")
	n.cdi("nodes.yaml", `cdiVersion: "0.7.0"
kind: acme.example/node
devices:
- name: render
  containerEdits: {deviceNodes: [{path: /dev/dri/renderD130}]}
- name: card
  containerEdits: {deviceNodes: [{path: /dev/x, type: c, major: 226, minor: 2}]}
- name: gpu
  containerEdits: {deviceNodes: [{path: /dev/x, hostPath: /dev/innocent}]}
- name: verbs
  containerEdits: {deviceNodes: [{path: /dev/infiniband/uverbs0}]}
- name: drm
  containerEdits: {deviceNodes: [{path: /dev/x, type: c, major: 226, minor: 99}]}
`)
	shared, exclusive := configured(t, "[policy]\ncdi = ['*']\n"), configured(t, "[policy]\ncdi = ['*']\nnics = 'exclusive'\n")
	refused := func(config, name, node string) {
		t.Helper()
		text := "berth: CDI device acme.example/node=" + name + ": its node " + node + " belongs to a GPU or an RDMA NIC, which berth leases: request that instead (berth run --gpus, --nics)"
		n.berth("--config", config, "run", "--gpus", "acme.example/node="+name, image(), "true").fails(125, text)
		n.berth("--config", config, "alloc", "acme.example/node="+name, "--", "true").fails(125, text)
	}
	for _, config := range []string{shared, exclusive} {
		refused(config, "render", "/dev/dri/renderD130 (c 226:130)")
		refused(config, "card", "/dev/x (c 226:2)")
		refused(config, "gpu", "/dev/x (c 195:3)")
		n.berth("--config", config, "run", "--gpus", "acme.example/node=drm", image(), "true").is(0, "", "")
	}
	refused(exclusive, "verbs", "/dev/infiniband/uverbs0 (c 231:192)")
	n.berth("--config", shared, "run", "--gpus", "acme.example/node=verbs", image(), "true").is(0, "", "")
	n.checkClean(t)
}
