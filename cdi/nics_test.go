package cdi

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// writeAdapters makes a /sys with adapters mlx5_0 to mlx5_2, whose nodes are numbered from the end.
func writeAdapters(t *testing.T) (NICs, gpu.Inventory) {
	t.Helper()
	n := NICs{Host: gpu.Host{Sys: t.TempDir()}, State: t.TempDir()}
	var inv gpu.Inventory
	for i := range 3 {
		pci := fmt.Sprintf("0000:%d0:00.0", i+1)
		nic := gpu.NIC{
			Name: fmt.Sprintf("mlx5_%d", i), GUID: fmt.Sprintf("b8ce:f603:00a1:000%d", i), PCI: pci,
			Uverbs: fmt.Sprintf("uverbs%d", 2-i), Ports: []gpu.Port{{Number: 1}},
		}
		inv.NICs = append(inv.NICs, nic)
		at := "devices/pci0000:00/" + pci
		sysFile(t, n, at+"/infiniband/"+nic.Name+"/node_guid", nic.GUID)
		sysLink(t, n, "class/infiniband/"+nic.Name, "../../"+at+"/infiniband/"+nic.Name)
		sysFile(t, n, at+"/infiniband_verbs/"+nic.Uverbs+"/ibdev", nic.Name)
		sysFile(t, n, at+"/infiniband_verbs/"+nic.Uverbs+"/dev", fmt.Sprintf("231:%d", 192+2-i))
		sysLink(t, n, "class/infiniband_verbs/"+nic.Uverbs, "../../"+at+"/infiniband_verbs/"+nic.Uverbs)
		sysLink(t, n, fmt.Sprintf("class/infiniband_mad/umad%d", i), "../../"+at)
	}
	sysFile(t, n, "class/infiniband_verbs/abi_version", "6")
	sysFile(t, n, "class/misc/rdma_cm/dev", "10:58")
	return n, inv
}

func sysFile(t *testing.T, n NICs, name, text string) {
	t.Helper()
	path := n.Host.SysPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func sysLink(t *testing.T, n NICs, name, to string) {
	t.Helper()
	path := n.Host.SysPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func leaseOf(inv gpu.Inventory, shared bool, which ...int) (all []gpu.Device) {
	for _, i := range which {
		all = append(all, inv.NICs[i].Device(shared))
	}
	return all
}

func TestNICs(t *testing.T) {
	n, inv := writeAdapters(t)
	got, err := n.Edits(inv, leaseOf(inv, false, 0, 2), "lease", true)
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Dir(filepath.Dir(got.Mounts[len(got.Mounts)-1].Source))
	list := map[string][]string{}
	for _, class := range []string{classDevices, classVerbs} {
		entries, err := os.ReadDir(filepath.Join(tree, class))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			to, _ := os.Readlink(filepath.Join(tree, class, e.Name()))
			list[class] = append(list[class], e.Name()+" "+to)
		}
	}
	if d := cmp.Diff(map[string][]string{
		classDevices: {"mlx5_0 ../../devices/pci0000:00/0000:10:00.0/infiniband/mlx5_0", "mlx5_2 ../../devices/pci0000:00/0000:30:00.0/infiniband/mlx5_2"},
		classVerbs:   {"abi_version ", "uverbs0 ../../devices/pci0000:00/0000:30:00.0/infiniband_verbs/uverbs0", "uverbs2 ../../devices/pci0000:00/0000:10:00.0/infiniband_verbs/uverbs2"},
	}, list); d != "" {
		t.Errorf("lists (-want +got):\n%s", d)
	}
	bindOne := func(source, destination string) specs.Mount {
		m := bindView(source, destination)
		m.Options[0] = "bind"
		return m
	}
	want := edits.Edits{
		Nodes: []edits.Node{deviceNode("infiniband/uverbs2", 231, 194), deviceNode("infiniband/uverbs0", 231, 192), deviceNode("infiniband/rdma_cm", 10, 58)},
		Env:   map[string]string{"NCCL_IB_HCA": "=mlx5_0:1,mlx5_2:1"},
		Mounts: []specs.Mount{
			bindOne(n.Host.SysPath("bus/pci"), "/sys/bus/pci"), bindOne(n.Host.SysPath("class"), "/sys/class"),
			bindOne(n.Host.SysPath("devices"), "/sys/devices"), bindOne(n.Host.SysPath("module"), "/sys/module"),
			bindView(tree+"/class/infiniband", "/sys/class/infiniband"), bindView(tree+"/class/infiniband_verbs", "/sys/class/infiniband_verbs"),
		},
		MaskedPaths: []string{"/sys/class/infiniband_mad"},
	}
	checkReasons(t, got)
	if why := got.Why("device", "/dev/infiniband/uverbs2"); why != "RDMA device mlx5_0:1" {
		t.Errorf("the node of mlx5_0 is there because of %s", why)
	}
	if d := cmp.Diff(want, got, withoutReasons()); d != "" {
		t.Errorf("edits (-want +got):\n%s", d)
	}
	bare, err := n.Edits(inv, leaseOf(inv, false, 0, 2), "lease", false)
	if err != nil {
		t.Fatal(err)
	}
	want.Mounts, want.MaskedPaths = nil, nil
	if d := cmp.Diff(want, bare, withoutReasons()); d != "" {
		t.Errorf("without /sys (-want +got):\n%s", d)
	}
	if got, err := n.Edits(inv, nil, "lease", true); err != nil || !cmp.Equal(got, edits.Edits{}) {
		t.Errorf("without NICs: %+v, %v", got, err)
	}
}

func TestHiddenEdits(t *testing.T) {
	n, _ := writeAdapters(t)
	want := edits.Edits{MaskedPaths: []string{"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/infiniband_mad"}}
	if d := cmp.Diff(want, n.HiddenEdits()); d != "" {
		t.Errorf("hidden (-want +got):\n%s", d)
	}
	if e := (NICs{Host: gpu.Host{Sys: t.TempDir()}}).HiddenEdits(); !cmp.Equal(e, edits.Edits{}) {
		t.Errorf("on a machine without RDMA: %+v", e)
	}
}

// TestViewOfLease: each lease has lists of its own, also of an adapter that was another's before. A container that may mount
// can write to them, and the root of any container owns them: it can take a lease on a file (fcntl F_SETLEASE).
func TestViewOfLease(t *testing.T) {
	n, inv := writeAdapters(t)
	of := func(shared bool, lease string) string {
		e, err := n.Edits(inv, leaseOf(inv, shared, 1), lease, true)
		if err != nil {
			t.Fatal(err)
		}
		return e.Mounts[len(e.Mounts)-1].Source
	}
	for _, shared := range []bool{true, false} {
		if of(shared, "one") == of(shared, "two") {
			t.Errorf("shared %v: two leases see one directory", shared)
		}
		if first := of(shared, "one"); first != of(shared, "one") {
			t.Errorf("shared %v: the same is made twice", shared)
		}
	}
}

// TestNICsRefuse: an adapter whose name or identity differs from the inventory isn't the leased
// one.
func TestNICsRefuse(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		change     func(NICs, *gpu.Inventory)
	}{
		{"gone from the inventory", "doesn't have it any more", func(_ NICs, inv *gpu.Inventory) { inv.NICs = nil }},
		{"gone from the machine", "is missing; where RDMA namespaces", func(n NICs, _ *gpu.Inventory) { _ = os.Remove(n.Host.SysPath("class/infiniband/mlx5_1")) }},
		{"another of the name", "is another one now, b8ce:f603:00a1:0007", func(n NICs, _ *gpu.Inventory) {
			_ = os.WriteFile(n.Host.SysPath("class/infiniband/mlx5_1/node_guid"), []byte("b8ce:f603:00a1:0007\n"), 0o600)
		}},
		{"no node", "modprobe ib_uverbs", func(n NICs, _ *gpu.Inventory) { _ = os.RemoveAll(n.Host.SysPath("class/infiniband_verbs")) }},
		{"no number", "is no device number", func(n NICs, _ *gpu.Inventory) {
			_ = os.WriteFile(n.Host.SysPath("class/infiniband_verbs/uverbs1/dev"), []byte("231\n"), 0o600)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, inv := writeAdapters(t)
			leased := leaseOf(inv, false, 1)
			tt.change(n, &inv)
			if _, err := n.Edits(inv, leased, "lease", true); err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v, want %q", err, tt.text)
			}
		})
	}
}

// TestRenumbered: a node may have another number than at discovery; the adapter's name decides.
func TestRenumbered(t *testing.T) {
	n, inv := writeAdapters(t)
	inv.NICs[1].Uverbs = "uverbs0"
	e, err := n.Edits(inv, leaseOf(inv, false, 1), "lease", true)
	if err != nil {
		t.Fatal(err)
	}
	if e.Nodes[0] != deviceNode("infiniband/uverbs1", 231, 193) {
		t.Errorf("node %+v", e.Nodes[0])
	}
}

func TestCheckChosenHCAs(t *testing.T) {
	_, inv := writeAdapters(t)
	inv.NICs[2].Name = "mlx5_10"
	for value, want := range map[string]string{
		"=mlx5_0:1": "", "mlx5": "", "mlx5_1": "", "^mlx5_9": "", "=mlx5_0,mlx5_10:1": "",
		"=mlx5_1": "mlx5_1: NCCL", "=mlx5": "mlx5: NCCL", "mlx4_0,mlx5_0,mlx5_7:2": "mlx4_0, mlx5_7: NCCL",
	} {
		note := CheckChosenHCAs(value, inv, leaseOf(inv, false, 0, 2))
		if (note == "") != (want == "") || !strings.Contains(note, want) {
			t.Errorf("%s: note %q, want %q", value, note, want)
		}
	}
}

func TestRDMALimits(t *testing.T) {
	const unlimited = math.MaxUint64
	limit := func(name string, soft, hard uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: "RLIMIT_" + name, Soft: soft, Hard: hard}
	}
	for _, tt := range []struct {
		name  string
		have  []specs.POSIXRlimit
		own   ProcessLimits
		want  []specs.POSIXRlimit
		notes int
	}{
		{"root", nil, ProcessLimits{true, 65536, 4096}, []specs.POSIXRlimit{limit("MEMLOCK", unlimited, unlimited), limit("NOFILE", 131072, 131072)}, 0},
		{"a service without limits", nil, ProcessLimits{false, unlimited, 1 << 20}, []specs.POSIXRlimit{limit("MEMLOCK", unlimited, unlimited), limit("NOFILE", 131072, 1<<20)}, 0},
		{"a user", nil, ProcessLimits{false, 65536, 4096}, []specs.POSIXRlimit{limit("MEMLOCK", 65536, 65536), limit("NOFILE", 4096, 4096)}, 2},
		{"the launcher's", []specs.POSIXRlimit{limit("NOFILE", 4096, 4096)}, ProcessLimits{false, unlimited, 4096}, []specs.POSIXRlimit{limit("MEMLOCK", unlimited, unlimited)}, 1},
		{"the launcher's for root", []specs.POSIXRlimit{limit("NOFILE", 131072, 131072)}, ProcessLimits{true, unlimited, 4096}, []specs.POSIXRlimit{limit("MEMLOCK", unlimited, unlimited)}, 0},
		{
			"asked for",
			[]specs.POSIXRlimit{limit("MEMLOCK", 1024, 1024), limit("NOFILE", 100, 200)},
			ProcessLimits{true, unlimited, 1 << 20},
			nil, 1,
		},
		{
			"containerd's",
			[]specs.POSIXRlimit{limit("MEMLOCK", unlimited, unlimited), limit("NOFILE", 1024, 1024)},
			ProcessLimits{true, 0, 4096},
			[]specs.POSIXRlimit{limit("NOFILE", 131072, 131072)},
			0,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, notes := RDMALimits(tt.have, tt.own)
			if d := cmp.Diff(edits.Edits{Rlimits: tt.want}, e, withoutReasons()); d != "" || len(notes) != tt.notes {
				t.Errorf("%q (-want +got):\n%s", notes, d)
			}
			if slices.ContainsFunc(e.Rlimits, func(l specs.POSIXRlimit) bool { return e.Why("limit", l.Type) == "" }) {
				t.Errorf("not all of %v have a reason: %v", e.Rlimits, e.Reasons)
			}
			if slices.ContainsFunc(notes, func(r edits.Removal) bool { return !r.Urgent || r.Kind != "note" }) {
				t.Errorf("not all of %q are urgent remarks", notes)
			}
		})
	}
}
