package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

func TestMatchGang(t *testing.T) {
	fast := pcieNode(8) // GPU 1 and 6 are the only A100s, 2 and 3 are larger
	for i := range fast.GPUs {
		switch i {
		case 1, 6:
			fast.GPUs[i].Model = "NVIDIA A100"
		case 2, 3:
			fast.GPUs[i].Memory = 81559 << 20
		}
	}
	crossed := nodeOf("NVIDIA A100", 81559<<20, 4, func(a, b int) gpu.Link { return gpu.Link{NVLinks: b2i(a == 0 && b == 1), PCIe: gpu.PathSYS} })
	star := nodeOf("NVIDIA H100", 81559<<20, 5, func(a, b int) gpu.Link {
		return gpu.Link{NVLinks: 4*b2i(a == 0 && b < 3) + b2i(a == 3 && b == 4), PCIe: gpu.PathSYS}
	})
	crossed.GPUs[2].Memory = 40960 << 20
	crossed.GPUs[3].Model = "NVIDIA H100"
	tests := []struct {
		name, request string
		inv           gpu.Inventory
		taken         string
		want          string // of each part
	}{
		{"ranks in the node's order", "1;1;1;1", dgxNode(), "", "0|1|2|3"},
		{"ranks near each other", "1;1;1;1", dgxNode(), "0", "4|5|6|7"},
		{"pairs of a mesh", "2;2;2;2", meshNode(), "", "0 3|1 2|4 7|5 6"},
		{"pairs of what is left", "2;2", meshNode(), "0 3 5", "2 6|4 7"},
		{"unequal parts of one set", "1;3", dgxNode(), "4", "0|1 2 3"},
		{"scarce GPUs are kept for the part that needs them", "6;a100:2", fast, "", "0 2 3 4 5 7|1 6"},
		{"the same, other order of parts", "a100:2;6", fast, "", "1 6|0 2 3 4 5 7"},
		{"by name, and any other", "2;device=0", dgxNode(), "", "1 2|0"},
		{"memory and model and any", "1,mem>=80G;a100;5;1,mem>=80G", fast, "", "2|1|0 4 5 6 7|3"},
		{"slices and GPUs", "2;1g.5gb;1g.5gb", migNode(), "", "0 1|3:0|3:1"},
		{"slices of one GPU in one part", "1g.5gb:2;1g.5gb:2", migNode(), "", "2:0 2:1|3:0 3:1"},
		{"two profiles on one GPU", "1g.5gb;3g.20gb", migNode(), "", "2:0|2:2"},
		{"all GPUs and a slice", "all;1g.5gb", migNode(), "", "0 1 6|3:0"},
		{"with a CDI device", "1,v/c=a;1", dgxNode(), "", "0 v/c=a|1"},
		{"a part without GPUs", "v/c=a;1", dgxNode(), "", "v/c=a|0"},
		{"the best pair, but not at another's cost", "a100:2;2,mem>=70G", crossed, "", "0 2|1 3"},
		{"near the one by name", "device=0;2", star, "", "0|1 2"},
		{"nothing is broken up for it", "a100;h100", crossed, "", "2|3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := mustParse(t, tt.request)
			got, err := Choose(tt.inv, r, devicesAt(t, tt.inv, strings.Fields(tt.taken)...))
			if err != nil {
				t.Fatal(err)
			}
			parts, err := Divide(tt.inv, r, got)
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, p := range parts {
				texts = append(texts, indexesOf(p))
			}
			if text := strings.Join(texts, "|"); text != tt.want {
				t.Errorf("%s with %q taken: %s, want %s", r, tt.taken, text, tt.want)
			}
			if !slices.Equal(slices.Concat(parts...), got) {
				t.Errorf("%v isn't what %v is divided into", got, parts)
			}
		})
	}
}

func TestMatchGangErrors(t *testing.T) {
	tests := []struct {
		name, request string
		inv           gpu.Inventory
		taken         string
		is            error
		line          string
	}{
		{"too many", "8;1", dgxNode(), "", ErrTooMany, "8;1: node has 8 GPUs, 9 asked"},
		{"too many of both", "a100:2;2", migNode(), "", ErrTooMany, "a100:2;2: node has 3 A100 and GPUs, 4 asked"},
		{"too many beside the named", "device=0;8", dgxNode(), "", ErrTooMany, "device=0;8: node has 7 GPUs beside the named ones, 8 asked"},
		{"all and one more", "all;1", dgxNode(), "", ErrTooMany, "all;1: node has 8 GPUs, 9 asked"},
		{"unknown model", "1;b200", dgxNode(), "", ErrUnknown, "1;b200: node has no b200 (did you mean h100?); it has h100"},
		{"busy", "4;4", dgxNode(), "3", ErrBusy, "4;4: 7 of 8 GPUs free, 8 asked"},
		{"one model is busy", "a100;1", migNode(), "0 1", ErrBusy, "a100;1: 0 of 2 A100 free, 1 asked"},
		{"slices are busy", "1g.5gb:2;1g.5gb", migNode(), "2:0 2:1", ErrBusy, "1g.5gb:2;1g.5gb: 2 of 4 1g.5gb slices free, 3 asked"},
		{"named one is busy", "1;device=3", dgxNode(), "3", ErrBusy, "1;device=3: taken: GPU 3"},
		{"named twice", "device=0;0000:1b:00.0,1", dgxNode(), "", request.ErrBad, "device=0;device=0000:1b:00.0,1: two parts of the gang name GPU 0"},
		{"slice and its GPU", "device=2;2:0", migNode(), "", request.ErrBad, "device=2;device=2:0: two parts of the gang name GPU 2 and slice 2:0, of which one is a slice of the other"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := mustParse(t, tt.request)
			got, err := Choose(tt.inv, r, devicesAt(t, tt.inv, strings.Fields(tt.taken)...))
			if !errors.Is(err, tt.is) || got != nil {
				t.Fatalf("got %v, %v, want %v", got, err, tt.is)
			}
			if err.Error() != tt.line {
				t.Errorf("error\n %s, want\n %s", err, tt.line)
			}
			if _, err := Candidates(tt.inv, r); (err == nil) != (tt.is == ErrBusy) {
				t.Errorf("Candidates: %v", err)
			}
		})
	}
}

func TestDivide(t *testing.T) {
	inv := nicNode()
	r := mustParse(t, "all;v/c=a,nics=1;1g.10gb,nics=auto")
	got, err := Choose(inv, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	shares, err := Divide(inv, r, got)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(indexesOf(shares[0]), "|", indexesOf(shares[1]), "|", indexesOf(shares[2])); text != "0 1 2 3 4 5 6|v/c=a n0|7:0 n3" {
		t.Error(text)
	}
	// A lease can be divided although devices of it are gone from the node.
	gone := inv
	gone.NICs, gone.GPUs = nil, inv.GPUs[:7]
	if shares, err = Divide(gone, r, got); err != nil || indexesOf(shares[2]) != "7:0 n3" {
		t.Errorf("%v, %v", shares, err)
	}
	if one, err := Divide(inv, mustParse(t, "2"), got[:2]); err != nil || len(one) != 1 || !slices.Equal(one[0], got[:2]) {
		t.Errorf("not a gang's: %v, %v", one, err)
	}
	for _, ds := range [][]gpu.Device{nil, got[:1], append(slices.Clone(got), got[0])} {
		if shares, err := Divide(inv, mustParse(t, "1;1"), ds); err == nil {
			t.Errorf("%d devices: %v", len(ds), shares)
		}
	}
	// The NICs were active when they were leased, and may be inactive in the caller's inventory.
	down := inv
	down.NICs = slices.Clone(inv.NICs)
	for i := range down.NICs {
		down.NICs[i].Ports = []gpu.Port{{State: "INIT"}}
	}
	if shares, err = Divide(down, r, got); err != nil || indexesOf(shares[2]) != "7:0 n3" {
		t.Errorf("%v, %v", shares, err)
	}
	// Two parts that are near the same NIC both have it.
	r = mustParse(t, "device=0,nics=auto;device=1,nics=auto")
	if got, err = Choose(inv, r, nil); err != nil || indexesOf(got) != "0 n0 1" {
		t.Fatalf("%s, %v", indexesOf(got), err)
	}
	if shares, err = Divide(inv, r, got); err != nil || indexesOf(shares[1]) != "1 n0" {
		t.Errorf("%v, %v", shares, err)
	}
}
