package sysfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
)

// fake is a /sys in a new directory.
type fake struct {
	t    *testing.T
	root string
}

func newFake(t *testing.T) fake {
	return fake{t, t.TempDir() + "/sys"}
}

func (f fake) host() gpu.Host { return gpu.Host{Sys: f.root} }

func (f fake) file(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f fake) link(target, name string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(f.root, target), path); err != nil {
		f.t.Fatal(err)
	}
}

// pci makes a device whose place below devices/ is given.
func (f fake) pci(place, numa, cpus string) {
	f.file("devices/"+place+"/numa_node", numa)
	f.file("devices/"+place+"/local_cpulist", cpus)
	f.link("devices/"+place, "bus/pci/devices/"+filepath.Base(place))
}

func TestNothing(t *testing.T) {
	h := newFake(t).host()
	nodes, err := NUMA(h)
	if nodes != nil || err != nil {
		t.Errorf("NUMA: %v, %v", nodes, err)
	}
	nics, err := NICs(h)
	if nics != nil || err != nil {
		t.Errorf("NICs: %v, %v", nics, err)
	}
	n, err := NVSwitches(h)
	if n != 0 || err != nil {
		t.Errorf("NVSwitches: %d, %v", n, err)
	}
	for _, address := range []string{"0000:1b:00.0", "", "../../etc"} {
		d, err := PCI(h, address)
		if diff := cmp.Diff(Device{Address: address, NUMA: -1}, d); diff != "" || err != nil {
			t.Errorf("PCI(%q): %v %s", address, err, diff)
		}
	}
}

func TestNUMA(t *testing.T) {
	f := newFake(t)
	f.file("devices/system/node/node10/cpulist", "64-127")
	f.file("devices/system/node/node2/cpulist", "0-63,128-191")
	f.file("devices/system/node/node3/cpulist", "")
	f.file("devices/system/node/has_cpu", "0-2")
	got, err := NUMA(f.host())
	want := []gpu.NUMANode{{ID: 2, CPUs: "0-63,128-191"}, {ID: 3}, {ID: 10, CPUs: "64-127"}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	f.file("devices/system/node/node3/cpulist", "5-1")
	if _, err := NUMA(f.host()); err == nil || !strings.Contains(err.Error(), "node3/cpulist") {
		t.Errorf("broken list: %v", err)
	}
}

func TestPCI(t *testing.T) {
	f := newFake(t)
	f.pci("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "1", "56-111")
	got, err := PCI(f.host(), "0000:18:00.0")
	want := Device{
		Address: "0000:18:00.0", NUMA: 1, CPUs: "56-111",
		Route: []string{"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
}

func TestNVSwitches(t *testing.T) {
	f := newFake(t)
	for address, ids := range map[string][2]string{
		"0000:05:00.0": {"0x10de", "0x068000"}, "0000:06:00.0": {"0x10de", "0x068000"},
		"0000:07:00.0": {"0x10de", "0x030200"}, "0000:08:00.0": {"0x8086", "0x068000"},
	} {
		f.file("devices/pci0000:00/"+address+"/vendor", ids[0])
		f.file("devices/pci0000:00/"+address+"/class", ids[1])
		f.link("devices/pci0000:00/"+address, "bus/pci/devices/"+address)
	}
	if got, err := NVSwitches(f.host()); got != 2 || err != nil {
		t.Errorf("%d, %v; want 2", got, err)
	}
}

func TestDRI(t *testing.T) {
	f := newFake(t)
	const place = "pci0000:15/0000:15:01.0/0000:1b:00.0"
	f.pci(place, "0", "0-55")
	if got, err := DRI(f.host(), "0000:1b:00.0"); got != nil || err != nil {
		t.Errorf("no graphics driver: %v, %v", got, err)
	}
	drm := "devices/" + place + "/drm/"
	f.file(drm+"renderD129/dev", "226:129")
	f.file(drm+"card1/dev", "226:1")
	f.file(drm+"card1/card1-DP-1/status", "connected")
	f.file(drm+"controlD65/dev", "226:65")
	f.file(drm+"card1-DP-1/dev", "226:7")
	f.file(drm+"card/dev", "226:7")
	f.file(drm+"card2/uevent", "going away")
	want := []gpu.DRINode{{Name: "card1", Minor: 1}, {Name: "renderD129", Minor: 129}}
	got, err := DRI(f.host(), "0000:1b:00.0")
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	for _, address := range []string{"", "../../etc", "0000:1c:00.0"} {
		if got, err := DRI(f.host(), address); got != nil || err != nil {
			t.Errorf("DRI(%q): %v, %v", address, got, err)
		}
	}
	for _, number := range []string{"226", "226:x", "226:-1", "226:1048576"} {
		f.file(drm+"card1/dev", number)
		if got, err := DRI(f.host(), "0000:1b:00.0"); got != nil || err == nil || !strings.Contains(err.Error(), "card1/dev") {
			t.Errorf("%s: %v, %v", number, got, err)
		}
	}
}

// Displays are recognised, and other cards aren't taken for displays.
func TestDisplays(t *testing.T) {
	f := newFake(t)
	if got, err := Displays(f.host()); got != nil || err != nil {
		t.Errorf("no graphics at all: %v, %v", got, err)
	}
	for i, card := range [][2]string{
		{"0000:02:00.0", "0x1a03"},
		{"0000:03:00.0", "0x102b"},
		{"0000:00:02.0", "0x8086"},
		{"0000:04:00.0", "0x1234"},
		{"0000:1b:00.0", "0x10de"},
		{"0000:3b:00.0", "0x8086"},
		{"0000:4b:00.0", "0x1002"},
		{"0000:5b:00.0", ""},
	} {
		place := "devices/pci0000:00/" + card[0]
		name := fmt.Sprintf("card%d", i)
		at := place + "/drm/" + name
		f.file(place+"/vendor", card[1])
		f.file(at+"/dev", fmt.Sprintf("226:%d", i))
		f.link(place, at+"/device")
		f.link(place, "bus/pci/devices/"+card[0])
		f.link(at, "class/drm/"+name)
		f.link(at, "class/drm/"+name+"-VGA-1")
	}
	f.file("devices/platform/vgem/drm/card9/dev", "226:9") // without a device
	f.link("devices/platform/vgem/drm/card9", "class/drm/card9")
	want := []gpu.DRINode{{Name: "card0"}, {Name: "card1", Minor: 1}, {Name: "card2", Minor: 2}, {Name: "card3", Minor: 3}}
	got, err := Displays(f.host())
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	f.file("class/drm/version", "drm 1.1.0 20060810")
	if highest, err := MaxMinor(f.host()); highest != 9 || err != nil {
		t.Errorf("MaxMinor = %d, %v", highest, err)
	}
}

func TestPath(t *testing.T) {
	// Two switches below one root port's bus, as in servers with eight GPUs.
	const sw = "pci0000:15/0000:15:01.0/0000:16:00.0/"
	at := func(numa int, place string) Device {
		d := Device{NUMA: numa}
		if place != "" {
			d.Route = pciRoute("/sys/devices/" + place)
		}
		return d
	}
	gpu0 := at(0, sw+"0000:17:00.0/0000:18:00.0")
	tests := []struct {
		name  string
		a, b  Device
		nodes int
		want  gpu.Path
	}{
		{"ports of one switch", gpu0, at(0, sw+"0000:17:01.0/0000:19:00.0"), 2, gpu.PathPIX},
		{"functions of one card", gpu0, at(0, sw+"0000:17:00.0/0000:18:00.1"), 2, gpu.PathPIX},
		{"itself", gpu0, gpu0, 2, gpu.PathPIX},
		{"a switch below the switch", gpu0, at(0, sw+"0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0"), 2, gpu.PathPXB},
		{"behind one bridge more", gpu0, at(0, sw+"0000:17:02.0/0000:1a:00.0/0000:1b:00.0"), 2, gpu.PathPXB},
		{"other root port", gpu0, at(0, "pci0000:15/0000:15:02.0/0000:1d:00.0"), 2, gpu.PathPHB},
		{"flat tree of a virtual machine", at(-1, "pci0000:00/0000:00:05.0"), at(-1, "pci0000:00/0000:00:06.0"), 1, gpu.PathPHB},
		{"other host bridge, same node", gpu0, at(0, "pci0000:2a/0000:2a:01.0/0000:2b:00.0"), 2, gpu.PathNODE},
		{"other node", gpu0, at(1, "pci0000:a7/0000:a7:01.0/0000:a8:00.0"), 2, gpu.PathSYS},
		{"node unknown, one node", at(-1, "pci0000:15/0000:15:01.0"), at(-1, "pci0000:2a/0000:2a:01.0"), 1, gpu.PathNODE},
		{"node unknown, two nodes", at(-1, "pci0000:15/0000:15:01.0"), at(-1, "pci0000:2a/0000:2a:01.0"), 2, gpu.PathSYS},
		{"one place unknown", gpu0, at(0, ""), 1, gpu.PathSYS},
		{"both places unknown", at(-1, ""), at(-1, ""), 1, gpu.PathSYS},
		{"below a VMD", at(0, "pci0000:5d/0000:5d:00.5/pci10000:00/10000:00:02.0/10000:01:00.0"), at(0, "pci0000:5d/0000:5d:00.5/pci10000:00/10000:00:03.0/10000:02:00.0"), 2, gpu.PathPHB},
		{"on a platform bus", at(0, "platform/abc.pcie/pci0004:00/0004:00:00.0/0004:01:00.0"), at(0, "platform/def.pcie/pci0005:00/0005:00:00.0/0005:01:00.0"), 2, gpu.PathNODE},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Path(tt.a, tt.b, tt.nodes); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if got := Path(tt.b, tt.a, tt.nodes); got != tt.want {
				t.Errorf("the other way: %s, want %s", got, tt.want)
			}
		})
	}
}

func TestNICs(t *testing.T) {
	f := newFake(t)
	const hca = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0"
	f.pci(hca, "0", "0-55")
	f.link("devices/"+hca, "class/infiniband/mlx5_10/device")
	f.file("class/infiniband/mlx5_10/ports/1/link_layer", "InfiniBand")
	f.file("class/infiniband/mlx5_10/ports/1/state", "4: ACTIVE")
	f.file("class/infiniband/mlx5_10/ports/1/rate", "400 Gb/sec (4X NDR)")
	f.file("class/infiniband/mlx5_10/node_guid", "b8ce:f603:00a1:d2f4")
	f.file("class/infiniband/mlx5_10/ports/2/link_layer", "Ethernet")
	for i, gid := range []string{"fe80:0000:0000:0000:bace:f6ff:fea1:d2f4", "0000:0000:0000:0000:0000:ffff:0a0a:0001", "fe80:0000:0000:0000:0000:0000:0000:0000", "0000:0000:0000:0000:0000:0000:0000:0000"} {
		f.file(fmt.Sprintf("class/infiniband/mlx5_10/ports/2/gids/%d", i), gid)
	}
	f.file("class/infiniband/mlx5_10/ports/2/gid_attrs/types/1", "RoCE v2")
	f.file("class/infiniband/mlx5_10/ports/2/gid_attrs/ndevs/1", "eth0")
	f.file("class/infiniband/mlx5_3/node_guid", "0000:0000:0000:0000")
	f.file("class/infiniband/mlx5_4/node_guid", "b8ce:f603:00a1:0000")
	f.file("class/infiniband/mlx5_5/node_guid", "b8ce:f603:00a1:0000")
	f.file("devices/"+hca+"/net/ibs1/mtu", "4092")
	f.file("class/infiniband_verbs/uverbs0/ibdev", "mlx5_10")
	f.file("class/infiniband_verbs/abi_version", "6")
	f.file("class/infiniband/mlx5_2/fw_ver", "28.39")
	f.link("devices/virtual/gone", "class/infiniband/rxe0/device")

	got, err := NICs(f.host())
	if err != nil {
		t.Fatal(err)
	}
	place, err := PCI(f.host(), "0000:1a:00.0")
	if err != nil {
		t.Fatal(err)
	}
	want := []NIC{
		{NIC: gpu.NIC{Name: "mlx5_2", NUMA: -1}, Device: Device{NUMA: -1}},
		{NIC: gpu.NIC{Name: "mlx5_3", NUMA: -1}, Device: Device{NUMA: -1}},
		{NIC: gpu.NIC{Name: "mlx5_4", NUMA: -1}, Device: Device{NUMA: -1}},
		{NIC: gpu.NIC{Name: "mlx5_5", NUMA: -1}, Device: Device{NUMA: -1}},
		{
			NIC: gpu.NIC{
				Name: "mlx5_10", GUID: "b8ce:f603:00a1:d2f4", PCI: "0000:1a:00.0", NUMA: 0, Uverbs: "uverbs0", Netdevs: []string{"ibs1"},
				Ports: []gpu.Port{
					{Number: 1, LinkLayer: "InfiniBand", State: "ACTIVE", Rate: "400 Gb/sec (4X NDR)"},
					{Number: 2, LinkLayer: "Ethernet", GIDs: []gpu.GID{
						{Index: 0, GID: "fe80:0000:0000:0000:bace:f6ff:fea1:d2f4"},
						{Index: 1, GID: "0000:0000:0000:0000:0000:ffff:0a0a:0001", Type: "RoCE v2", Netdev: "eth0"},
					}},
				},
			},
			Device: place,
		},
		{NIC: gpu.NIC{Name: "rxe0", NUMA: -1}, Device: Device{NUMA: -1}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestStates(t *testing.T) {
	f := newFake(t)
	f.file("class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
	f.file("class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE")
	port := func(n int, state string) gpu.Port {
		return gpu.Port{Number: n, State: state, LinkLayer: "InfiniBand"}
	}
	before := []gpu.NIC{
		{Name: "mlx5_0", Ports: []gpu.Port{port(1, "ACTIVE"), port(2, "INIT")}, Near: []gpu.Path{gpu.PathPIX}},
		{Name: "gone", Ports: []gpu.Port{port(1, "ACTIVE")}},
	}
	got, err := ReadPortStates(f.host(), before)
	if err != nil {
		t.Fatal(err)
	}
	want := []gpu.NIC{
		{Name: "mlx5_0", Ports: []gpu.Port{port(1, "DOWN"), port(2, "ACTIVE")}, Near: []gpu.Path{gpu.PathPIX}},
		{Name: "gone", Ports: []gpu.Port{port(1, "")}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if before[0].Ports[0].State != "ACTIVE" {
		t.Error("what was handed in was changed")
	}
}

func TestByNumber(t *testing.T) {
	got := []string{"mlx5_10", "bnxt_re0", "mlx5_2", "mlx5_bond", "mlx5_99999999999999999999", "mlx5_0"}
	slices.SortFunc(got, byNumber)
	want := []string{"bnxt_re0", "mlx5_0", "mlx5_2", "mlx5_10", "mlx5_99999999999999999999", "mlx5_bond"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestCheckCPUList(t *testing.T) {
	for _, list := range []string{"", "0", "0-55,112-167", "3,5,7-7"} {
		if err := checkCPUList(list); err != nil {
			t.Error(err)
		}
	}
	for _, list := range []string{"a", "1-", "-1", "5-1", "3,3", "0-5,4", "0-65536", "0;1", "0,", "0-1-2", "+1"} {
		if checkCPUList(list) == nil {
			t.Errorf("%q was accepted", list)
		}
	}
}

func FuzzCheckCPUList(f *testing.F) {
	f.Add("0-55,112-167")
	f.Add("0,,1")
	f.Fuzz(func(t *testing.T, list string) {
		if checkCPUList(list) == nil && strings.Trim(list, "0123456789,-") != "" {
			t.Errorf("%q was accepted", list)
		}
	})
}

func FuzzRoute(f *testing.F) {
	f.Add("/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0")
	f.Fuzz(func(t *testing.T, path string) {
		for _, part := range pciRoute(path) {
			if !isHostBridge(part) && !isPCIAddress(part) {
				t.Errorf("%q in the route of %q", part, path)
			}
		}
	})
}
