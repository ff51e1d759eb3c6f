package menu_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
)

const hook = "/usr/libexec/berth-hook"

// node has two healthy H100s, a lost one, and an A100 cut into two slices.
func node() gpu.Inventory {
	return gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-0", Index: 0, PCI: "0000:1b:00.0", Model: "NVIDIA H100 80GB HBM3"},
		{UUID: "GPU-1", Index: 1, PCI: "0000:43:00.0", Model: "NVIDIA H100 80GB HBM3"},
		{UUID: "GPU-2", Index: 2, PCI: "0000:52:00.0", Model: "NVIDIA H100 80GB HBM3", Lost: "GPU is lost"},
		{UUID: "GPU-3", Index: 3, PCI: "0000:61:00.0", Model: "NVIDIA A100-SXM4-40GB", MIG: true, Slices: []gpu.Slice{
			{UUID: "MIG-0", Index: 0, Profile: "1g.5gb"}, {UUID: "MIG-1", Index: 1, Profile: "1g.5gb"}, {UUID: "MIG-2", Index: 2, Profile: "1g.5gb+me"},
		}},
	}}
}

func TestSpec(t *testing.T) {
	type asked struct{ Name, Flag, Value string }
	tests := []struct {
		name, kind string
		inv        gpu.Inventory
		features   []string
		want       []asked
	}{
		{"requests", menu.KindGPUs, node(), nil, []asked{
			{"1", "--request", "1"},
			{"2", "--request", "2"},
			{"all", "--request", "all"},
			{"h100", "--request", "h100"},
			{"h100:1", "--request", "h100:1"},
			{"h100:2", "--request", "h100:2"},
			{"1g.5gb", "--request", "1g.5gb"},
			{"1g.5gb:1", "--request", "1g.5gb:1"},
			{"1g.5gb:2", "--request", "1g.5gb:2"},
			{"gpu0", "--request", "device=0"},
			{"GPU-0", "--request", "GPU-0"},
			{"0000:1b:00.0", "--request", "0000:1b:00.0"},
			{"gpu1", "--request", "device=1"},
			{"GPU-1", "--request", "GPU-1"},
			{"0000:43:00.0", "--request", "0000:43:00.0"},
			{"gpu3", "--request", "device=3"},
			{"GPU-3", "--request", "GPU-3"},
			{"0000:61:00.0", "--request", "0000:61:00.0"},
			{"3:0", "--request", "3:0"},
			{"MIG-0", "--request", "MIG-0"},
			{"3:1", "--request", "3:1"},
			{"MIG-1", "--request", "MIG-1"},
			{"3:2", "--request", "3:2"},
			{"MIG-2", "--request", "MIG-2"},
		}},
		{"NVIDIA's names", menu.KindNVIDIA, node(), nil, []asked{
			{"0", "--nvidia", "device=0"},
			{"GPU-0", "--request", "GPU-0"},
			{"1", "--nvidia", "device=1"},
			{"GPU-1", "--request", "GPU-1"},
			{"3:0", "--request", "3:0"},
			{"MIG-0", "--request", "MIG-0"},
			{"3:1", "--request", "3:1"},
			{"MIG-1", "--request", "MIG-1"},
			{"3:2", "--request", "3:2"},
			{"MIG-2", "--request", "MIG-2"},
			{"all", "--request", "all"},
		}},
		{"features", menu.KindWith, node(), []string{"gds", "imex=0"}, []asked{{"gds", "--with", "gds"}, {"imex:0", "--with", "imex=0"}}},
		{"no features", menu.KindWith, node(), nil, nil},
		{"no GPUs", menu.KindNVIDIA, gpu.Inventory{}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data, err := menu.Spec(tt.kind, tt.inv, menu.Options{Hook: hook, Features: tt.features})
			if err != nil {
				t.Fatal(err)
			}
			var got []asked
			if data != nil {
				spec, err := cdi.ParseSpec(data)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range spec.Devices {
					h := d.ContainerEdits.Hooks[0]
					if h.Path != hook || h.HookName != "createRuntime" || len(h.Args) != 4 || h.Args[0] != "berth-hook" || h.Args[1] != "createRuntime" {
						t.Errorf("device %s: hook %+v", d.Name, h)
					}
					got = append(got, asked{d.Name, h.Args[2], h.Args[3]})
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Every request on the menu can be parsed.
func TestSpecRequests(t *testing.T) {
	for _, kind := range []string{menu.KindGPUs, menu.KindNVIDIA} {
		data, err := menu.Spec(kind, node(), menu.Options{Hook: hook})
		if err != nil {
			t.Fatal(err)
		}
		spec, err := cdi.ParseSpec(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range spec.Devices {
			r, err := request.Parse(d.ContainerEdits.Hooks[0].Args[3])
			if err != nil {
				t.Errorf("%s=%s: %v", kind, d.Name, err)
			} else if _, err := match.Candidates(node(), r); err != nil {
				t.Errorf("%s=%s: %v", kind, d.Name, err)
			}
		}
	}
}

// The library that docker, podman and containerd use accepts every menu, for any node, and finds no
// device twice; the same node gives the same bytes.
func TestSpecIsValid(t *testing.T) {
	word := rapid.StringMatching(`[A-Za-z0-9+:._/ -]{0,12}`)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		inv := gpu.Inventory{}
		for i := range rapid.IntRange(0, 9).Draw(t, "gpus") {
			g := gpu.GPU{UUID: "GPU-" + word.Draw(t, "uuid"), Index: i, PCI: fmt.Sprintf("0000:%02x:00.0", i), Model: word.Draw(t, "model")}
			for j := range rapid.IntRange(0, 7).Draw(t, "slices") {
				g.MIG = true
				g.Slices = append(g.Slices, gpu.Slice{UUID: word.Draw(t, "slice"), Index: j, Profile: word.Draw(t, "profile")})
			}
			inv.GPUs = append(inv.GPUs, g)
		}
		for _, kind := range []string{menu.KindGPUs, menu.KindNVIDIA} {
			data, err := menu.Spec(kind, inv, menu.Options{Hook: hook})
			again, err2 := menu.Spec(kind, inv, menu.Options{Hook: hook})
			if err != nil || err2 != nil || !bytes.Equal(data, again) {
				t.Fatalf("%v, %v; the same: %v", err, err2, bytes.Equal(data, again))
			}
			if data == nil {
				continue
			}
			path := filepath.Join(dir, menu.FileName(kind))
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := cdi.ReadSpec(path, 0); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
		}
	})
}

func ExampleSpec() {
	inv := gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-8f4a", PCI: "0000:1b:00.0", Model: "NVIDIA L40S"}}}
	data, err := menu.Spec(menu.KindNVIDIA, inv, menu.Options{Hook: "/usr/bin/berth-hook"})
	if err != nil {
		panic(err)
	}
	first, _, _ := bytes.Cut(data, []byte(",\n    {\n      \"name\": \"GPU-"))
	fmt.Printf("%s\n", first)
	// Output:
	// {
	//   "cdiVersion": "0.5.0",
	//   "kind": "nvidia.com/gpu",
	//   "devices": [
	//     {
	//       "name": "0",
	//       "containerEdits": {
	//         "hooks": [
	//           {
	//             "hookName": "createRuntime",
	//             "path": "/usr/bin/berth-hook",
	//             "args": [
	//               "berth-hook",
	//               "createRuntime",
	//               "--nvidia",
	//               "device=0"
	//             ]
	//           }
	//         ]
	//       }
	//     }
}

// TestNICs: the requests for RDMA devices have valid CDI names.
func TestNICs(t *testing.T) {
	inv := gpu.Inventory{NICs: []gpu.NIC{{Name: "mlx5_0"}, {Name: "mlx5_bond_0"}}}
	text, err := menu.Spec(menu.KindWith, inv, menu.Options{Hook: hook})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`"name": "([^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	if d := cmp.Diff([]string{"nics:auto", "nics:1", "nics:2", "nics:mlx5_0", "nics:mlx5_bond_0"}, names); d != "" {
		t.Error(d)
	}
	if !bytes.Contains(text, []byte(`"nics=mlx5_bond_0"`)) {
		t.Errorf("%s", text)
	}
}
