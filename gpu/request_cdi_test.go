package gpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestRequestCDI(t *testing.T) {
	tests := []struct {
		in, text string
		want     []string
		err      string
	}{
		{in: "vendor.example/nic=Port0", text: "vendor.example/nic=Port0", want: []string{"vendor.example/nic=Port0"}},
		{in: "device=vendor.example/nic=0:1", text: "vendor.example/nic=0:1", want: []string{"vendor.example/nic=0:1"}},
		{in: `"v/c=b, v/c=a"`, text: "v/c=a,v/c=b", want: []string{"v/c=a", "v/c=b"}},
		{in: "2,v/c=a", text: "2,v/c=a", want: []string{"v/c=a"}},
		{in: "v/c=a,2", text: "2,v/c=a", want: []string{"v/c=a"}},
		{in: "0,v/c=a,3,+gds", text: "device=0,3,+gds,v/c=a", want: []string{"v/c=a"}},
		{in: "H100:2,V/C=A,mem>=40G", text: "h100:2,mem>=40G,V/C=A", want: []string{"V/C=A"}},
		{in: "2", text: "2"},
		{in: "v/c=a,v/c=a", err: "named twice"},
		{in: "berth/gpus=2", err: `here it is "2"`},
		{in: "+gds,v/c=a", err: "asks for no GPU"},
		{in: "0,v/c", err: "isn't the name of a CDI device"},
		{in: "v/=a", err: "isn't the name"},
		{in: "/c=a", err: "isn't the name"},
		{in: "v/c=a/b", err: "isn't the name"},
		{in: "1v/c=a", err: "isn't the name"},
		{in: "v/c=-a", err: "isn't the name"},
		{in: "v/c=../../etc", err: "isn't the name"},
		{in: "v/c=" + strings.Repeat("a", 300), err: "at most 256 bytes"},
		{in: "none,v/c=a", err: "asks for no GPU"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r, err := ParseRequest(tt.in)
			if tt.err != "" {
				if err == nil || !errors.Is(err, ErrRequest) || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, r.CDI()); d != "" || r.String() != tt.text {
				t.Errorf("%q, want %q: %s", r, tt.text, d)
			}
			if again, err := ParseRequest(tt.text); err != nil || again != r {
				t.Errorf("ParseRequest(%q) = %#v, %v, want %#v", tt.text, again, err, r)
			}
		})
	}
}

func TestMatchCDI(t *testing.T) {
	inv := Inventory{
		GPUs: []GPU{{UUID: "GPU-0", Index: 0}, {UUID: "GPU-1", Index: 1}},
		CDI:  []string{"v/c=a", "v/c=b"},
	}
	a := CDIDevice("v/c=a")
	tests := []struct {
		name, in string
		taken    []Device
		want     []string
		err      error
		says     string
	}{
		{"alone", "v/c=a", nil, []string{"v/c=a"}, nil, ""},
		{"with a GPU", "1,v/c=a", nil, []string{"GPU-0", "v/c=a"}, nil, ""},
		{"another one is taken", "v/c=b", []Device{a}, []string{"v/c=b"}, nil, ""},
		{"taken", "v/c=a", []Device{a}, nil, ErrBusy, "v/c=a: taken: v/c=a"},
		{"all or nothing", "1,v/c=a", []Device{a}, nil, ErrBusy, "1,v/c=a: taken: v/c=a"},
		{"GPU is taken", "2,v/c=a", []Device{inv.GPUs[0].Device()}, nil, ErrBusy, "1 of 2 GPUs free, 2 asked"},
		{"unknown", "v/c=x", nil, nil, ErrUnknown, "node has no CDI device v/c=x (did you mean v/c=a?)"},
		{"more than there are", "3,v/c=a", nil, nil, ErrTooMany, "node has 2 GPUs, 3 asked"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := inv.Match(mustParse(t, tt.in), tt.taken)
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
			if _, err := inv.Candidates(mustParse(t, tt.in)); err == nil == (errors.Is(tt.err, ErrUnknown) || errors.Is(tt.err, ErrTooMany)) {
				t.Errorf("Candidates: %v", err)
			}
		})
	}
}

// A request in line keeps its GPUs also where nobody has looked up its CDI devices.
func TestCandidatesOfCDINotLookedUp(t *testing.T) {
	inv := Inventory{GPUs: []GPU{{UUID: "GPU-0"}}}
	got, err := inv.Candidates(mustParse(t, "1,v/c=a"))
	if d := cmp.Diff([]Device{inv.GPUs[0].Device(), CDIDevice("v/c=a")}, got); d != "" || err != nil {
		t.Errorf("%v: %s", err, d)
	}
}

// Adding a CDI device to a request never changes which GPUs it gets.
func TestMatchCDIChangesNothing(t *testing.T) {
	inv := Inventory{CDI: []string{"v/c=a"}}
	for i := range 8 {
		inv.GPUs = append(inv.GPUs, GPU{UUID: "GPU-" + string(rune('a'+i)), Index: i})
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"1", "2", "all", "0,3", "8"}).Draw(t, "request")
		var taken []Device
		for _, g := range inv.GPUs {
			if rapid.Bool().Draw(t, "taken") {
				taken = append(taken, g.Device())
			}
		}
		without, err := inv.Match(mustParseRapid(t, text), taken)
		with, err2 := inv.Match(mustParseRapid(t, text+",v/c=a"), taken)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%v, %v", err, err2)
		}
		if err == nil {
			if d := cmp.Diff(append(without, CDIDevice("v/c=a")), with); d != "" {
				t.Error(d)
			}
		}
	})
}
