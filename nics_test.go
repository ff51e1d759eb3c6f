package berth

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

func TestPlaceNICs(t *testing.T) {
	inv := gpu.Inventory{NICs: []gpu.NIC{
		{Name: "mlx5_0", GUID: "a:0", Netdevs: []string{"ib0"}, Ports: []gpu.Port{{Number: 1, LinkLayer: "InfiniBand"}}},
		{Name: "mlx5_1", GUID: "a:1", Netdevs: []string{"eth1"}, Ports: []gpu.Port{{Number: 1, LinkLayer: "Ethernet"}}},
		{Name: "rxe0", GUID: "a:2", Ports: []gpu.Port{{Number: 1, LinkLayer: "Ethernet"}}},
	}}
	const alone = "RDMA device mlx5_1 is RoCE and uses the addresses of eth1, which isn't in a network of the job's own: it works with the host's network, or with network rdma"
	for _, tt := range []struct {
		name    string
		nic     int
		shared  bool
		mode    RDMAMode
		network string
		want    NICMove
		err     string
	}{
		{"host", 1, true, RDMAExclusive, NetworkHost, NICMove{}, ""},
		{"InfiniBand needs nothing", 0, true, RDMAShared, NetworkPrivate, NICMove{}, ""},
		{"InfiniBand in its namespace", 0, false, RDMAExclusive, NetworkNone, NICMove{Links: []string{"mlx5_0"}}, ""},
		{"InfiniBand leaves its interface", 0, false, RDMAExclusive, NetworkRDMA, NICMove{Links: []string{"mlx5_0"}}, ""},
		{"RoCE alone", 1, false, RDMAShared, NetworkPrivate, NICMove{}, alone},
		{"RoCE without a way out", 1, false, RDMAExclusive, NetworkNone, NICMove{}, alone},
		{"RoCE with its interface", 1, false, RDMAShared, NetworkRDMA, NICMove{Interfaces: []string{"eth1"}}, ""},
		{"RoCE in its namespace", 1, false, RDMAExclusive, NetworkRDMA, NICMove{Links: []string{"mlx5_1"}, Interfaces: []string{"eth1"}}, ""},
		{"RoCE of several", 1, true, RDMAShared, NetworkRDMA, NICMove{}, "RDMA device mlx5_1 is RoCE and uses the addresses of eth1, which can't go into the job's network while policy.nics leases it to several: it works with the host's network"},
		{"RoCE without an interface", 2, false, RDMAShared, NetworkRDMA, NICMove{}, "RDMA device rxe0 is RoCE, and has no network interface whose addresses it could use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leased := []gpu.Device{{UUID: "GPU-0"}, inv.NICs[tt.nic].Device(tt.shared)}
			got, err := PlaceNICs(inv, leased, tt.mode, tt.network)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if d := cmp.Diff(tt.want, got); d != "" || message != tt.err {
				t.Errorf("%s (-want +got):\n%s", message, d)
			}
		})
	}
	if _, err := PlaceNICs(gpu.Inventory{}, []gpu.Device{inv.NICs[0].Device(true)}, RDMAShared, NetworkNone); err == nil {
		t.Error("an adapter that is gone is placed")
	}
}

func TestNetworkOf(t *testing.T) {
	n := &Node{config: Config{Data: "/data"}}
	for _, tt := range []struct{ name, path, annotation, want string }{
		{"a new one", "", "", NetworkPrivate},
		{"a pod's", "/var/run/netns/cni-1", "", NetworkPrivate},
		{"a gang's", "/data/tasks/0123/ns/net", NetworkRDMA, NetworkRDMA},
		{"a gang's, without the annotation", "/data/tasks/0123/ns/net", "", NetworkPrivate},
		{"annotation outside of a task", "/var/run/netns/cni-1", NetworkHost, NetworkPrivate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{
				Annotations: map[string]string{NetworkAnnotation: tt.annotation},
				Linux:       &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "network", Path: tt.path}}},
			}
			if got := n.networkOf(spec); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := n.networkOf(&specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "pid"}}}}); got != NetworkHost {
		t.Errorf("got %q", got)
	}
}

func TestFindDefaultRoute(t *testing.T) {
	const routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"eth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	if got := findDefaultRoute(routes, []string{"eth1", "eth0"}); got != "eth0" {
		t.Errorf("got %q", got)
	}
	if got := findDefaultRoute(routes, []string{"eth1"}); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestRDMALinksBecomeHook: a spec has no field for RDMA links, so a hook moves them.
func TestRDMALinksBecomeHook(t *testing.T) {
	e := edits.Edits{RDMALinks: []string{"mlx5_0", "mlx5_3"}, RDMAInterfaces: []string{"eth1"}}
	if err := e.Apply(&specs.Spec{}); err == nil {
		t.Error("applied as they are")
	}
	spec := &specs.Spec{}
	if err := e.DeferNet("/bin/berth-hook", "--config", "/c").Apply(spec); err != nil {
		t.Fatal(err)
	}
	want := []specs.Hook{{Path: "/bin/berth-hook", Args: []string{"berth-hook", "--config", "/c", "rdma", "mlx5_0", "mlx5_3", "net:eth1"}, Env: []string{}}}
	if d := cmp.Diff(want, spec.Hooks.CreateRuntime); d != "" {
		t.Errorf("hooks (-want +got):\n%s", d)
	}
}

// TestSplitDevices: an adapter that several parts of a gang share is returned once.
func TestSplitDevices(t *testing.T) {
	gpus, nics, named := splitDevices([]gpu.Device{{UUID: "GPU-0"}, {UUID: "HCA-0"}, {UUID: "GPU-1"}, {UUID: "HCA-0"}, {UUID: "vendor.example/nic=0"}})
	if len(gpus) != 2 || len(nics) != 1 || len(named) != 1 {
		t.Errorf("%v, %v, %v", gpus, nics, named)
	}
}
