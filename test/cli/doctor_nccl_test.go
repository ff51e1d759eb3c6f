package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestDoctorNCCL: what NCCL needs of a machine with NICs.
func TestDoctorNCCL(t *testing.T) {
	t.Parallel()
	n := newHealthyNode(t, "dgx-h100")
	other := func(text string) string {
		return "PATH=/run/path /run/programs/berth --config " + configured(t, "[policy]\n"+text) + " doctor --json"
	}
	const (
		bridge   = "/sys/bus/pci/devices/0000:19:01.0/config" // GPU 0's port of its switch
		control  = "dd bs=1 seek=262 conv=notrunc status=none of=" + bridge
		storage  = "/sys/class/infiniband/mlx5_1/" // RoCE
		topology = "/run/nvidia-topologyd/virtualTopology.xml"
		mode     = "/sys/module/ib_core/parameters/netns_mode"
	)
	seen := map[string]bool{"nccl.shm": true, "nccl.policy": true, "nccl.memlock": true}
	for _, s := range []defect{
		{
			name: "ACS", id: "nccl.acs", state: "warning", text: "redirects traffic between GPUs and NICs below a switch to the CPU: 0000:19:01.0",
			breaks: `printf '\035' | ` + control, fix: `printf '\000' | ` + control, says: "for b in 0000:19:01.0; do setpci -s $b ECAP_ACS+6.w=0; done",
		},
		{
			name: "peermem", id: "nccl.peermem", state: "warning", text: "nvidia_peermem isn't loaded",
			breaks: "mv /sys/module/nvidia_peermem /sys/module/gone", fix: "mv /sys/module/gone /sys/module/nvidia_peermem", says: "modprobe nvidia-peermem",
		},
		{
			name: "no node", id: "nccl.ports", state: "warning", text: "mlx5_0 has no uverbs node",
			breaks: "mv /sys/class/infiniband_verbs/uverbs0 /run/", fix: "mv /run/uverbs0 /sys/class/infiniband_verbs/", says: "modprobe ib_uverbs",
		},
		{
			name: "no subnet manager", id: "nccl.ports", state: "warning", text: "port 1 of mlx5_3 has a link and no address",
			breaks: "echo '2: INIT' >/sys/class/infiniband/mlx5_3/ports/1/state", fix: "echo '4: ACTIVE' >/sys/class/infiniband/mlx5_3/ports/1/state", says: "systemctl start opensm",
		},
		{
			name: "no address", id: "nccl.gids", state: "warning", text: "port 1 of mlx5_1 is RoCE and has no GID of RoCE v2",
			breaks: "echo 'IB/RoCE v1' >" + storage + "ports/1/gid_attrs/types/3", fix: "echo 'RoCE v2' >" + storage + "ports/1/gid_attrs/types/3", says: "ip address add ADDRESS/BITS dev eth1",
		},
		{
			name: "small packets", id: "nccl.mtu", state: "warning", text: "port 1 of mlx5_1 is RoCE at an MTU of 1500 (eth1)",
			breaks: "echo 1500 >" + storage + "device/net/eth1/mtu", fix: "echo 9000 >" + storage + "device/net/eth1/mtu", says: "ip link set dev eth1 mtu 9000",
		},
		{
			name: "namespaces", id: "nccl.namespaces", state: "warning", text: "policy leases it to several",
			breaks: "echo N >" + mode, fix: "echo Y >" + mode, says: `policy.nics = "exclusive"`,
		},
		{
			name: "a virtual machine", id: "nccl.files", state: "warning", text: "and no container gets it",
			breaks: "mkdir -p /run/nvidia-topologyd && echo '<system version=\"1\"><cpu numaid=\"0\"/></system>' >" + topology,
			fix:    "mkdir -p /etc/berth && printf '[policy]\\nnccl_topology = \"" + topology + "\"\\n' >/etc/berth/config.toml", says: `policy.nccl_topology = "/var/run/nvidia-topologyd/virtualTopology.xml"`,
		},
		{
			name: "broken topology", id: "nccl.files", state: "failure", text: "NCCL's topology " + topology + ": line 2: a tab: NCCL takes spaces alone; NCCL ends in every container",
			breaks: `printf '<system version="1">\n\t<cpu numaid="0"/></system>' >` + topology, fix: "sed -i 's/\\t//' " + topology, says: "correct it",
		},
		{
			name: "no file", id: "nccl.files", state: "failure", text: "no container gets a GPU: NCCL's file /etc/nccl.conf isn't there",
			breaks: "true", doctor: other("nccl_conf = '/etc/nccl.conf'"), fix: "true", says: "put it there",
		},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(t, n.as(t)) })
		seen[s.id] = true
	}
	found, _ := n.examine(doctor)
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if strings.HasPrefix(id, "nccl.") && !seen[id] {
			t.Errorf("nothing is broken for the check %s to see", id)
		}
	}
	found, _ = n.examine("prlimit --memlock=65536:65536 setpriv --bounding-set=-sys_resource --inh-caps=-all env " + doctor)
	if f := found["nccl.memlock"]; len(f) != 1 || f[0].State != "warning" || !strings.HasPrefix(f[0].Text, "tasks may lock 64 KiB of memory") {
		t.Errorf("got %+v", f)
	}
	found, _ = n.examine("setpriv --reuid=65534 --regid=65534 --clear-groups env " + doctor)
	if f := found["access"]; len(f) != 1 || !strings.Contains(f[0].Text, "nccl.memlock") {
		t.Errorf("got %+v", f)
	}
}
