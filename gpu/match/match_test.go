package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// nodeOf makes n healthy GPUs of a model with every pair linked as link says.
func nodeOf(model string, memory uint64, n int, link func(a, b int) gpu.Link) gpu.Inventory {
	var inv gpu.Inventory
	for i := range n {
		inv.GPUs = append(inv.GPUs, gpu.GPU{
			UUID: fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", 0x1b000000*(i%2)+i), Index: i, Minor: i,
			PCI: fmt.Sprintf("0000:%02x:00.0", 0x1b+i), Model: model, Memory: memory, NUMA: -1,
		})
		for j := range i {
			l := link(j, i)
			l.A, l.B = j, i
			inv.Links = append(inv.Links, l)
		}
	}
	return inv
}

// dgxNode: eight GPUs behind NVSwitches, two NUMA nodes.
func dgxNode() gpu.Inventory {
	return nodeOf("NVIDIA H100 80GB HBM3", 81559<<20, 8, func(a, b int) gpu.Link {
		return gpu.Link{NVLinks: 18, PCIe: halves(4, a, b)}
	})
}

// pcieNode: GPUs without NVLink on two NUMA nodes.
func pcieNode(n int) gpu.Inventory {
	return nodeOf("NVIDIA L40S", 46068<<20, n, func(a, b int) gpu.Link { return gpu.Link{PCIe: halves(n/2, a, b)} })
}

func halves(half, a, b int) gpu.Path {
	if a/half == b/half {
		return gpu.PathNODE
	}
	return gpu.PathSYS
}

// meshNode: the eight GPUs of a DGX-1, whose NVLinks are a cube mesh of one or
// two links between some of the pairs.
func meshNode() gpu.Inventory {
	links := map[[2]int]int{
		{0, 1}: 1, {0, 2}: 1, {0, 3}: 2, {0, 4}: 2, {1, 2}: 2, {1, 3}: 1, {1, 5}: 2, {2, 3}: 2,
		{2, 6}: 1, {3, 7}: 1, {4, 5}: 1, {4, 6}: 1, {4, 7}: 2, {5, 6}: 2, {5, 7}: 1, {6, 7}: 2,
	}
	return nodeOf("Tesla V100-SXM2-16GB", 16160<<20, 8, func(a, b int) gpu.Link {
		return gpu.Link{NVLinks: links[[2]int{a, b}], PCIe: halves(4, a, b)}
	})
}

// migNode: GPUs 0 and 1 whole, 2 and 3 cut into three and two slices, 4 in MIG
// mode without slices, 5 lost, 6 another model.
func migNode() gpu.Inventory {
	inv := nodeOf("NVIDIA A100-SXM4-40GB", 40960<<20, 7, func(a, b int) gpu.Link { return gpu.Link{NVLinks: 12, PCIe: gpu.PathSYS} })
	cut := func(place int, profiles ...string) {
		inv.GPUs[place].MIG = true
		for i, p := range profiles {
			inv.GPUs[place].Slices = append(inv.GPUs[place].Slices, gpu.Slice{
				UUID: fmt.Sprintf("MIG-%08x-0000-0000-0000-00000000000%d", place, i), Index: i,
				Profile: p, GI: i, Memory: 4864 << 20,
			})
		}
	}
	cut(2, "1g.5gb", "1g.5gb", "3g.20gb")
	cut(3, "1g.5gb", "1g.5gb")
	cut(4)
	inv.GPUs[5].Lost = "GPU is lost\n(Xid 79)"
	inv.GPUs[6].Model = "NVIDIA A10"
	inv.GPUs[6].Memory = 23028 << 20
	return inv
}

// devicesAt finds devices by their display index.
func devicesAt(t testing.TB, inv gpu.Inventory, indexes ...string) []gpu.Device {
	t.Helper()
	ds := make([]gpu.Device, 0, len(indexes))
	for _, x := range indexes {
		i := slices.IndexFunc(inv.Devices(), func(d gpu.Device) bool { return d.Index == x })
		if i < 0 {
			t.Fatalf("no device %s", x)
		}
		ds = append(ds, inv.Devices()[i])
	}
	return ds
}

func TestMatch(t *testing.T) {
	lostLink := dgxNode()
	lostLink.GPUs[1].Lost = "GPU is lost"
	empty := migNode()
	empty.GPUs = empty.GPUs[2:4]
	empty.GPUs[0].Index, empty.GPUs[1].Index = 0, 1
	swapped := migNode() // GPU 2, which has fewer slices
	swapped.GPUs[2].Slices, swapped.GPUs[3].Slices = swapped.GPUs[3].Slices, swapped.GPUs[2].Slices
	tests := []struct {
		name    string
		inv     gpu.Inventory
		request string
		taken   string
		want    string
	}{
		{"one of a switched node", dgxNode(), "1", "", "0"},
		{"one stays beside the taken", dgxNode(), "1", "5", "4"},
		{"two on one NUMA node", dgxNode(), "2", "0 1 2", "4 5"},
		{"the rest of a NUMA node rather than a new one", dgxNode(), "2", "0 1", "2 3"},
		{"three leave the smaller remainder", dgxNode(), "3", "4", "5 6 7"},
		{"all of a switched node", dgxNode(), "all", "", "0 1 2 3 4 5 6 7"},
		{"eight", dgxNode(), "8", "", "0 1 2 3 4 5 6 7"},
		{"a lost one is passed over", lostLink, "2", "", "0 2"},
		{"all that work", lostLink, "all", "", "0 2 3 4 5 6 7"},
		{"no NVLink: same NUMA node", pcieNode(4), "2", "0", "2 3"},
		{"no NVLink: the broken half first", pcieNode(4), "1", "0", "1"},
		{"double links of a mesh", meshNode(), "2", "", "0 3"},
		{"best square of a mesh", meshNode(), "4", "", "0 1 2 3"},
		{"what is left of a mesh", meshNode(), "2", "0 3", "1 2"},
		{"by model", migNode(), "a100:2", "", "0 1"},
		{"by model and memory", migNode(), "a100-40gb,mem=40G", "0", "1"},
		{"a10 isn't an a100", migNode(), "a10", "", "6"},
		{"by less memory", migNode(), "mem<40G", "", "6"},
		{"by enough memory", migNode(), "2,mem>=40G", "", "0 1"},
		{"all leaves MIG and lost alone", migNode(), "all", "2:0", "0 1 6"},
		{"all of a model", migNode(), "a100", "1", "0"},
		{"all slices if nothing else", empty, "all", "", "0:0 0:1 0:2 1:0 1:1"},
		{"slices pack on the fuller GPU", migNode(), "1g.5gb", "", "3:0"},
		{"slices fill a GPU before the next", migNode(), "1g.5gb:3", "", "2:0 3:0 3:1"},
		{"slices go where one is taken", migNode(), "1g.5gb", "2:2", "2:0"},
		{"a GPU in use comes before a fuller one", swapped, "1g.5gb", "3:2", "3:0"},
		{"profile with a condition", migNode(), "3g.20gb,mem=5G", "", "2:2"},
		{"slice by index", migNode(), "2:1", "2:0", "2:1"},
		{"slice by its GPU's UUID", migNode(), "GPU-00000002-0000-0000-0000-000000000000:1", "", "2:1"},
		{"slice by the beginning of its GPU's UUID", migNode(), "GPU-1b000003:0", "", "3:0"},
		{"slice by UUID", migNode(), "MIG-00000002-0000-0000-0000-000000000002", "", "2:2"},
		{"a parent by index is meant whole", migNode(), "device=2", "3:0", "2"},
		{"ids in the node's order", migNode(), "3:1,1,0", "", "0 1 3:1"},
		{"by UUID", dgxNode(), "GPU-1B000003-0000-0000-0000-000000000000", "", "3"},
		{"by the beginning of a UUID", dgxNode(), "GPU-1b000003", "", "3"},
		{"by PCI address", dgxNode(), "1e:00.0,00000000:1C:00.0", "", "1 3"},
		{"taken elsewhere doesn't matter", dgxNode(), "device=3", "2", "3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Choose(tt.inv, mustParse(t, tt.request), devicesAt(t, tt.inv, strings.Fields(tt.taken)...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(devicesAt(t, tt.inv, strings.Fields(tt.want)...), got); diff != "" {
				t.Errorf("%s with %q taken (-want +got):\n%s", tt.request, tt.taken, diff)
			}
		})
	}
}

// Errors name UUIDs by their beginnings.
func TestShortUUIDs(t *testing.T) {
	r, err := request.Parse("device=GPU-ffff0000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Choose(dgxNode(), r, nil); err == nil || !strings.HasSuffix(err.Error(), "it has GPU-00000000, GPU-1b000001, GPU-00000002, GPU-1b000003, GPU-00000004, GPU-1b000005, GPU-00000006, GPU-1b000007") {
		t.Errorf("%v", err)
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name    string
		inv     gpu.Inventory
		request string
		taken   string
		is      error
		line    string
	}{
		{"unknown model", dgxNode(), "h200:2", "", ErrUnknown, "h200:2: node has no h200 (did you mean h100?); it has h100"},
		{"unknown word", migNode(), "foo", "", ErrUnknown, "foo: node has no foo; it has a100, a10, 1g.5gb, 3g.20gb"},
		{"unknown profile", migNode(), "2g.10gb", "", ErrUnknown, "2g.10gb: node has no 2g.10gb (did you mean 3g.20gb?); it has a100, a10, 1g.5gb, 3g.20gb"},
		{"misspelled profile", migNode(), "1g.10gb", "", ErrUnknown, "1g.10gb: node has no 1g.10gb (did you mean 1g.5gb?); it has a100, a10, 1g.5gb, 3g.20gb"},
		{"unknown index", dgxNode(), "0,9", "", ErrUnknown, "device=0,9: node has no device 9; it has 0, 1, 2, 3, 4, 5, 6, 7"},
		{"unknown slice", migNode(), "2:7", "", ErrUnknown, "device=2:7: node has no device 2:7; it has 2:0, 2:1, 2:2, 3:0, 3:1"},
		{"unknown address", pcieNode(2), "af:00.0", "", ErrUnknown, "device=0000:af:00.0: node has no device 0000:af:00.0; it has 0000:1b:00.0, 0000:1c:00.0"},
		{"slice of a node without", dgxNode(), "0:0", "", ErrUnknown, "device=0:0: node has no device 0:0; it has none of the kind"},
		{"no model without GPUs", gpu.Inventory{}, "h100", "", ErrUnknown, "h100: node has no h100; it has none of the kind"},
		{
			"ambiguous", dgxNode(), "GPU-1b", "", ErrUnknown,
			"device=GPU-1b: GPU-1b fits more than one device; it has GPU-1b000001, GPU-1b000003, GPU-1b000005, GPU-1b000007",
		},
		{"too many of a model", dgxNode(), "h100:9", "", ErrTooMany, "h100:9: node has 8 H100, 9 asked"},
		{"too many even when busy", dgxNode(), "9", "0 1", ErrTooMany, "9: node has 8 GPUs, 9 asked"},
		{"too many with conditions", dgxNode(), "1,mem>80G,mem<1T", "", ErrTooMany, "1,mem<1T,mem>80G: node has 0 GPUs with mem<1T and mem>80G, 1 asked"},
		{"too many without lost and MIG", migNode(), "4", "", ErrTooMany, "4: node has 3 GPUs (1 more lost, 3 more in MIG mode), 4 asked"},
		{"too many slices", migNode(), "1g.5gb:5", "", ErrTooMany, "1g.5gb:5: node has 4 1g.5gb slices, 5 asked"},
		{"none at all", gpu.Inventory{}, "all", "", ErrTooMany, "all: node has 0 GPUs, 1 asked"},
		{"busy count", dgxNode(), "h100:4", "0 1 2 3 4 5", ErrBusy, "h100:4: 2 of 8 H100 free, 4 asked"},
		{"busy all", dgxNode(), "all", "3", ErrBusy, "all: 7 of 8 GPUs free, 8 asked"},
		{"busy id", dgxNode(), "0,3", "3", ErrBusy, "device=0,3: taken: GPU 3"},
		{"busy slice", migNode(), "2:0", "2:0", ErrBusy, "device=2:0: taken: slice 2:0"},
		{"a slice holds its parent", migNode(), "device=2", "2:0 3:1 2:2", ErrBusy, "device=2: taken: slice 2:0, slice 2:2"},
		{"a parent holds its slices", migNode(), "1g.5gb:3", "2", ErrBusy, "1g.5gb:3: 2 of 4 1g.5gb slices free, 3 asked"},
		{"lost by index", migNode(), "device=5", "", ErrLost, "device=5: 5 is lost (GPU 5, GPU-1b000005-0000-0000-0000-000000000000): GPU is lost (Xid 79)"},
		{"named twice", dgxNode(), "3,1e:00.0", "", request.ErrBad, "device=3,0000:1e:00.0: 3 and 0000:1e:00.0 are the same device"},
		{"parent and slice", migNode(), "2,2:0", "", request.ErrBad, "device=2,2:0: 2 and 2:0 exclude each other: one is a slice of the other"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := mustParse(t, tt.request)
			got, err := Choose(tt.inv, r, devicesAt(t, tt.inv, strings.Fields(tt.taken)...))
			if got != nil || !errors.Is(err, tt.is) {
				t.Fatalf("Match = %v, %v, want %v", got, err, tt.is)
			}
			if err.Error() != tt.line {
				t.Errorf("error\n %s, want\n %s", err, tt.line)
			}
			_, err = Candidates(tt.inv, r)
			if busy := tt.is == ErrBusy; busy != (err == nil) || err != nil && err.Error() != tt.line {
				t.Errorf("Candidates: %v", err)
			}
		})
	}
}

func TestErrorDetails(t *testing.T) {
	inv := migNode()
	_, err := Choose(inv, mustParse(t, "1g.5gb:3"), devicesAt(t, inv, "2", "0", "3:0"))
	var got *Error
	if !errors.As(err, &got) {
		t.Fatal(err)
	}
	want := Error{
		Err: ErrBusy, Request: "1g.5gb:3", Wanted: 3, Total: 4, Free: 1,
		Busy: devicesAt(t, inv, "2", "3:0"), noun: "1g.5gb slices",
	}
	if diff := cmp.Diff(want, *got, cmp.AllowUnexported(Error{}), cmp.Comparer(func(a, b error) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if _, err := Choose(inv, request.Request{}, nil); !errors.Is(err, request.ErrBad) {
		t.Errorf("zero request: %v", err)
	}
}

func TestCandidates(t *testing.T) {
	tests := []struct{ request, want string }{
		{"2", "0 1 6"},
		{"all", "0 1 6"},
		{"a100", "0 1"},
		{"1g.5gb", "2:0 2:1 3:0 3:1"},
		{"device=2", "2"},
		{"3:0,1", "1 3:0"},
	}
	inv := migNode()
	for _, tt := range tests {
		t.Run(tt.request, func(t *testing.T) {
			got, err := Candidates(inv, mustParse(t, tt.request))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(devicesAt(t, inv, strings.Fields(tt.want)...), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestModels(t *testing.T) {
	tests := []struct{ name, short, yes, no string }{
		{"NVIDIA H100 80GB HBM3", "h100", "h100 H100-80GB nvidia-h100-80gb-hbm3 h100_hbm3", "h10 h1000 100 h100h100 80gbh100 gh100 h"},
		{"NVIDIA A100-SXM4-40GB", "a100", "a100 a100-40gb a100-sxm4 sxm4", "a10 a100-80gb"},
		{"NVIDIA A10", "a10", "a10", "a100 a1"},
		{"NVIDIA L40S", "l40s", "l40s", "l40 l4"},
		{"NVIDIA GeForce RTX 4090", "rtx4090", "rtx4090 rtx-4090", "rtx409 rtx40900"},
		{"NVIDIA RTX A6000", "a6000", "a6000 rtxa6000", "rtx6000"},
		{"NVIDIA RTX 6000 Ada Generation", "rtx6000", "rtx6000 rtx-6000-ada", "a6000"},
		{"Tesla V100-SXM2-16GB", "v100", "v100 tesla-v100", "v10"},
		{"NVIDIA TITAN V", "titanv", "titanv titan", "titanx"},
		{"AMD Instinct MI300X", "mi300x", "mi300x", "mi300"},
		{"", "", "", "h100 -"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := gpu.ModelWord(tt.name); got != tt.short || got != "" && !gpu.MatchesModel(got, tt.name) {
				t.Errorf("short %q, want %q", got, tt.short)
			}
			for _, w := range strings.Fields(tt.yes) {
				if !gpu.MatchesModel(w, tt.name) {
					t.Errorf("%s doesn't match", w)
				}
			}
			for _, w := range strings.Fields(tt.no) {
				if gpu.MatchesModel(w, tt.name) {
					t.Errorf("%s matches", w)
				}
			}
		})
	}
}

func TestLink(t *testing.T) {
	inv := pcieNode(4)
	if got, want := inv.Link(1, 0), (gpu.Link{A: 1, B: 0, PCIe: gpu.PathNODE}); got != want {
		t.Errorf("Link(1, 0) = %v, want %v", got, want)
	}
	if got, want := inv.Link(0, 9), (gpu.Link{A: 0, B: 9}); got != want {
		t.Errorf("Link(0, 9) = %v, want %v", got, want)
	}
}

// FuzzChoose: a valid request is granted in full or refused with an *Error.
func FuzzChoose(f *testing.F) {
	for _, s := range []string{
		"2", "all", "h100:2", "1g.10gb:2", "0,3", `'"device=0,1"'`, "GPU-8f4a", "MIG-03c1", "0:1", "GPU-8f4a:1", "1b:00.0",
		"2,mem>=40G", "h100,mem<80Gi,mem>1K", "none", "count=2", "\u212a40", "=", "mem", ":", ",", "device=device=1",
		"GPU 00000", "mig 1g.5gb", "h100 -_:2", "2,+gds,+imex=0-3", "+imex=1", "0,+gdrcopy,3", "-+a", "1,v.example/c=Name", "v/c=a,v/c=b",
		"2,nics=auto", "nics=mlx5_0+mlx5_1", "nic=2,v/c=a", "1,nics=none", "1;2,nics=1;1g.5gb", "device=0;all", ";", "1;v/c=a,nics=0", "1b:00.0;nics=1+",
	} {
		f.Add(s)
	}
	inv := migNode()
	inv.NICs = nicNode().NICs
	f.Fuzz(func(t *testing.T, s string) {
		r, err := request.Parse(s)
		if err != nil {
			return
		}
		var failed *Error
		if ds, err := Choose(inv, r, nil); err != nil && !errors.As(err, &failed) {
			t.Fatalf("match %q: %v", s, err)
		} else if n := len(slices.DeleteFunc(slices.Clone(ds), gpu.Device.IsNIC)); err == nil && r.Count() != 0 && n != r.Count()+len(r.CDI()) {
			t.Fatalf("match %q: %d devices, want %d", s, n, r.Count())
		} else if err == nil {
			if parts, err := Divide(inv, r, ds); err != nil || len(parts) != max(len(r.Parts()), 1) {
				t.Fatalf("divide %q: %v, %v", s, parts, err)
			}
		}
	})
}

func mustParse(t testing.TB, s string) request.Request {
	t.Helper()
	r, err := request.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
