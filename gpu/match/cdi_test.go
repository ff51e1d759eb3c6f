package match

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

func TestMatchCDI(t *testing.T) {
	inv := gpu.Inventory{
		GPUs: []gpu.GPU{{UUID: "GPU-0", Index: 0}, {UUID: "GPU-1", Index: 1}},
		CDI:  []gpu.Device{gpu.CDIDevice("v/c=a"), gpu.CDIDevice("v/c=b")},
	}
	a := gpu.CDIDevice("v/c=a")
	tests := []struct {
		name, in string
		taken    []gpu.Device
		want     []string
		err      error
		says     string
	}{
		{"alone", "v/c=a", nil, []string{"v/c=a"}, nil, ""},
		{"with a GPU", "1,v/c=a", nil, []string{"GPU-0", "v/c=a"}, nil, ""},
		{"another one is taken", "v/c=b", []gpu.Device{a}, []string{"v/c=b"}, nil, ""},
		{"taken", "v/c=a", []gpu.Device{a}, nil, ErrBusy, "v/c=a: taken: v/c=a"},
		{"all or nothing", "1,v/c=a", []gpu.Device{a}, nil, ErrBusy, "1,v/c=a: taken: v/c=a"},
		{"GPU is taken", "2,v/c=a", []gpu.Device{inv.GPUs[0].Device()}, nil, ErrBusy, "1 of 2 GPUs free, 2 asked"},
		{"unknown", "v/c=x", nil, nil, ErrUnknown, "node has no CDI device v/c=x (did you mean v/c=a?)"},
		{"more than there are", "3,v/c=a", nil, nil, ErrTooMany, "node has 2 GPUs, 3 asked"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Choose(inv, mustParse(t, tt.in), tt.taken)
			if !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v, want %v: %s", err, tt.err, tt.says)
			}
			var uuids []string
			for _, d := range got {
				uuids = append(uuids, d.UUID)
			}
			if d := cmp.Diff(tt.want, uuids); d != "" {
				t.Error(d)
			}
			if _, err := Candidates(inv, mustParse(t, tt.in)); err == nil == (errors.Is(tt.err, ErrUnknown) || errors.Is(tt.err, ErrTooMany)) {
				t.Errorf("Candidates: %v", err)
			}
		})
	}
}

// For a waiting request the GPUs are kept also where its CDI devices weren't looked up.
func TestCandidatesOfCDINotLookedUp(t *testing.T) {
	inv := gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-0"}}}
	got, err := Candidates(inv, mustParse(t, "1,v/c=a"))
	if d := cmp.Diff([]gpu.Device{inv.GPUs[0].Device(), gpu.CDIDevice("v/c=a")}, got); d != "" || err != nil {
		t.Errorf("%v: %s", err, d)
	}
}

// Adding a CDI device to a request never changes which GPUs it gets.
func TestMatchCDIChangesNothing(t *testing.T) {
	inv := gpu.Inventory{CDI: []gpu.Device{gpu.CDIDevice("v/c=a")}}
	for i := range 8 {
		inv.GPUs = append(inv.GPUs, gpu.GPU{UUID: "GPU-" + string(rune('a'+i)), Index: i})
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"1", "2", "all", "0,3", "8"}).Draw(t, "request")
		var taken []gpu.Device
		for _, g := range inv.GPUs {
			if rapid.Bool().Draw(t, "taken") {
				taken = append(taken, g.Device())
			}
		}
		without, err := Choose(inv, mustParseRapid(t, text), taken)
		with, err2 := Choose(inv, mustParseRapid(t, text+",v/c=a"), taken)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%v, %v", err, err2)
		}
		if err == nil {
			if d := cmp.Diff(append(without, gpu.CDIDevice("v/c=a")), with); d != "" {
				t.Error(d)
			}
		}
	})
}

// Whatever devices the host's CDI specs define, and in whatever order they are requested: no node that one holder's
// device lists as its own is brought by another holder's device, and a device is refused for no other reason.
func TestNodesOfCDIDevicesHaveOneHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"c 1:0", "c 1:1", "c 1:2", "c 1:10", "b 1:0", "c 11:0"}), 0, 3, rapid.ID)
		var inv gpu.Inventory
		var requests []string
		for i := range rapid.IntRange(1, 6).Draw(t, "devices") {
			d := gpu.CDIDevice("v/c=" + string(rune('a'+i)))
			d.Nodes, d.CommonNodes = gpu.JoinNodes(nodes.Draw(t, "own")), gpu.JoinNodes(nodes.Draw(t, "common"))
			inv.CDI, requests = append(inv.CDI, d), append(requests, d.UUID)
		}
		requests = append(requests, "v/c=a", "v/c=b;v/c=a")
		var held []gpu.Device
		for _, text := range rapid.Permutation(requests).Draw(t, "requests") {
			got, err := Choose(inv, mustParseRapid(t, text), held)
			wanted, clash := named(inv, text), false
			for i, d := range wanted {
				clash = clash || d == gpu.Device{} || slices.ContainsFunc(slices.Concat(held, wanted[:i]), func(h gpu.Device) bool { return excludes(d, h) })
			}
			if clash != (err != nil) || err == nil && !slices.Equal(got, wanted) {
				t.Fatalf("%s beside %v: got %v, %v", text, held, got, err)
			}
			held = append(held, got...)
		}
	})
}

// named returns the devices that a request of CDI names asks for, each as the zero device if there is none.
func named(inv gpu.Inventory, text string) (all []gpu.Device) {
	for name := range strings.SplitSeq(text, ";") {
		var found gpu.Device
		for _, d := range inv.CDI {
			if d.UUID == name {
				found = d
			}
		}
		all = append(all, found)
	}
	return all
}

// excludes is the rule, node by node.
func excludes(a, b gpu.Device) bool {
	if a.UUID == b.UUID {
		return true
	}
	for _, pair := range [][2]gpu.Device{{a, b}, {b, a}} {
		for own := range strings.SplitSeq(pair[0].Nodes, ",") {
			for other := range strings.SplitSeq(pair[1].Nodes+","+pair[1].CommonNodes, ",") {
				if own != "" && own == other {
					return true
				}
			}
		}
	}
	return false
}
