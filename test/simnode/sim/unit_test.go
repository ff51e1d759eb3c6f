package sim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommon(t *testing.T) {
	p, err := LookupProfile("dgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	pcie, err := LookupProfile("l40s-pcie")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		p    Profile
		a, b string
		want int
	}{
		{"itself", p, p.GPUs[0].Path, p.GPUs[0].Path, topologyInternal},
		{"GPU and its NIC", p, p.GPUs[0].Path, p.HCAs[0].Path, topologySingle},
		{"neighbours below one large switch", p, p.GPUs[0].Path, p.GPUs[1].Path, topologyMultiple},
		{"root ports of one host bridge", pcie, pcie.GPUs[0].Path, pcie.GPUs[1].Path, topologyHostBridge},
		{"host bridges of one node", p, p.GPUs[0].Path, p.GPUs[2].Path, topologyNode},
		{"far NIC of the same node", p, p.GPUs[0].Path, p.HCAs[8].Path, topologyNode},
		{"across nodes", p, p.GPUs[0].Path, p.GPUs[4].Path, topologySystem},
		{"below one plain switch", pcie, pcie.GPUs[2].Path, pcie.GPUs[3].Path, topologySingle},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.p.Common(tc.a, tc.b); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestLayOut(t *testing.T) {
	for _, tc := range []struct {
		name, layout string
		mig          bool
		want         []Instance
		err          string
	}{
		{name: "off", layout: "off"},
		{name: "on", layout: "on", mig: true},
		{name: "two halves", layout: "3g.40gb,3g.40gb", mig: true, want: []Instance{
			{"3g.40gb", 1, 4, []int{3}}, {"3g.40gb", 2, 0, []int{3}},
		}},
		{name: "cut again", layout: "3g.40gb:1c:2c,1g.10gb+me", mig: true, want: []Instance{
			{"3g.40gb", 1, 4, []int{1, 2}}, {"1g.10gb+me", 7, 0, []int{1}},
		}},
		{name: "no room", layout: "7g.80gb,1g.10gb", err: `no room for MIG profile "1g.10gb"`},
		{name: "eight", layout: "1g.20gb,1g.20gb,1g.20gb,1g.20gb,1g.10gb", err: `no room for MIG profile "1g.10gb"`},
		{name: "media engines twice", layout: "1g.10gb+me,1g.10gb+me", err: `layout "1g.10gb+me,1g.10gb+me" doesn't fit into seven slices`},
		{name: "unknown", layout: "5g.50gb", err: `NVIDIA A100-SXM4-80GB has no MIG profile "5g.50gb"`},
		{name: "too many compute slices", layout: "2g.20gb:2c:1c", err: "compute instances 2c:1c don't fit into 2g.20gb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mig, got, err := a100().layOut(tc.layout)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || mig != tc.mig {
				t.Errorf("MIG %v, want %v: %s", mig, tc.mig, diff)
			}
		})
	}
}

func TestMinors(t *testing.T) {
	// The driver's numbers: gpu0/gi7 is nvidia-cap66, its ci0 nvidia-cap67.
	gi, ci := Slice{GI: 7, CI: 0}.Minors(0)
	if gi != 66 || ci != 67 {
		t.Errorf("got %d and %d, want 66 and 67", gi, ci)
	}
	gi, ci = Slice{GI: 0, CI: 1}.Minors(1)
	if gi != 138 || ci != 140 {
		t.Errorf("got %d and %d, want 138 and 140", gi, ci)
	}
}

func TestCPULists(t *testing.T) {
	for _, tc := range []struct{ list, mask string }{
		{"0", "00000001"}, {"0-3,8", "0000010f"}, {"31-32", "00000001,80000000"},
	} {
		t.Run(tc.list, func(t *testing.T) {
			cpus, err := parseCPUs(tc.list)
			if err != nil {
				t.Fatal(err)
			}
			if got := formatCPUs(cpus); got != tc.list {
				t.Errorf("list %s came back as %s", tc.list, got)
			}
			if got := maskCPUs(tc.list); got != tc.mask {
				t.Errorf("mask %s, want %s", got, tc.mask)
			}
		})
	}
	if _, err := parseCPUs("a-b"); err == nil {
		t.Error("parsed a-b")
	}
}

func TestSortDevices(t *testing.T) {
	got := sortDevices("Character devices:\n  1 mem\n254 ndctl\n195 nvidia\n195 nvidiactl\n")
	want := "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n254 ndctl\n"
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

// Identities must be different from each other and the same in each run.
func TestIdentities(t *testing.T) {
	seen := map[string]string{}
	for _, p := range Profiles() {
		for i := range p.GPUs {
			id := p.UUID(i)
			if other, twice := seen[id]; twice {
				t.Errorf("%s is in %s and in %s", id, other, p.Name)
			}
			seen[id] = p.Name
		}
	}
	h := dgxH100()
	if got, want := h.UUID(0), "GPU-c41fcb1b-a940-4466-abc6-42f83ec7c7d1"; got != want {
		t.Errorf("UUID of GPU 0 is %s, was %s", got, want)
	}
}
