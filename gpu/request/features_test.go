package request

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

func TestRequestFeatures(t *testing.T) {
	tests := []struct {
		in   string
		text string
		want []gpu.Feature
	}{
		{"2", "2", nil},
		{"2,+gds", "2,+gds", []gpu.Feature{"gds"}},
		{"+gds,2", "2,+gds", []gpu.Feature{"gds"}},
		{`"2, + GDS"`, "2,+gds", []gpu.Feature{"gds"}},
		{"2,+nvswitch,+gds,+gds,+gdrcopy,+fabricmanager", "2,+fabricmanager,+gdrcopy,+gds,+nvswitch", []gpu.Feature{"fabricmanager", "gdrcopy", "gds", "nvswitch"}},
		{"2,+imex=0", "2,+imex=0", []gpu.Feature{"imex=0"}},
		{"2,+imex = 00-03", "2,+imex=0-3", []gpu.Feature{"imex=0-3"}},
		{"2,+imex=5-5,+imex=5", "2,+imex=5", []gpu.Feature{"imex=5"}},
		{"2,+imex=0-2047", "2,+imex=0-2047", []gpu.Feature{"imex=0-2047"}},
		{"0,3,+gds", "device=0,3,+gds", []gpu.Feature{"gds"}},
		{"0,+gds,3", "device=0,3,+gds", []gpu.Feature{"gds"}},
		{"device=0,+gds", "device=0,+gds", []gpu.Feature{"gds"}},
		{"device=+gds,0", "device=0,+gds", []gpu.Feature{"gds"}},
		{"all,+gdrcopy", "all,+gdrcopy", []gpu.Feature{"gdrcopy"}},
		{"mem>=40G,+gds", "1,mem>=40G,+gds", []gpu.Feature{"gds"}},
		{"h100:2,+gds,mem>=40G", "h100:2,mem>=40G,+gds", []gpu.Feature{"gds"}},
		{"1g.10gb+me:2,+gds", "1g.10gb+me:2,+gds", []gpu.Feature{"gds"}},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r, err := Parse(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, r.Features()); d != "" || r.String() != tt.text {
				t.Errorf("%q, want %q: %s", r, tt.text, d)
			}
			if again, err := Parse(tt.text); err != nil || again != r {
				t.Errorf("Parse(%q) = %#v, %v, want %#v", tt.text, again, err, r)
			}
			bare, _, _ := strings.Cut(tt.text, ",+")
			if without := mustParse(t, bare); without.Count() != r.Count() || without == r && tt.want != nil {
				t.Errorf("features change what %q asks for", bare)
			}
		})
	}
}

func TestRequestFeaturesRefused(t *testing.T) {
	tests := []struct{ in, says string }{
		{"+gds", "asks for no GPU"},
		{"device=+gds", "asks for no GPU"},
		{"+gds,+gdrcopy", "asks for no GPU"},
		{"0,+gds", `"device=0"`},
		{"none,+gds", "asks for no GPU"},
		{"2,+", `unknown feature ""; known: fabricmanager, gdrcopy, gds, imex, nvswitch`},
		{"2,+rdma", `unknown feature "rdma"; known: `},
		{"2,++gds", `unknown feature "+gds"`},
		{"2,+gds=1", "takes no value"},
		{"2,+gds=", "takes no value"},
		{"2,+imex", "needs the channels"},
		{"2,+imex=", "needs the channels"},
		{"2,+imex=3-0", "needs the channels"},
		{"2,+imex=0-", "needs the channels"},
		{"2,+imex=-3", "needs the channels"},
		{"2,+imex=0-1-2", "needs the channels"},
		{"2,+imex=all", "needs the channels"},
		{"2,+imex=2048", "0 to 2047"},
		{"2,+imex=99999999999999999999", "0 to 2047"},
		{"2,+imex=0,+imex=0-3", "as imex=0 and as imex=0-3"},
		{"h100,gds", `"gds" isn't a condition`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r, err := Parse(tt.in)
			if err == nil || !strings.Contains(err.Error(), tt.says) || r != (Request{}) {
				t.Errorf("%#v, %v, want %q", r, err, tt.says)
			}
			if !errors.Is(err, ErrBad) || errors.Is(err, ErrNone) {
				t.Errorf("%v: nothing but a bad request", err)
			}
		})
	}
}

func TestRequestWith(t *testing.T) {
	r := mustParse(t, "2,+imex=0-3")
	got, err := r.With("gds", "imex=0-3")
	if err != nil || got != mustParse(t, "2,+gds,+imex=0-3") {
		t.Errorf("%#v, %v", got, err)
	}
	if same, err := r.With(); err != nil || same != r {
		t.Errorf("%#v, %v", same, err)
	}
	if got, err := r.With("imex=5"); !errors.Is(err, ErrBad) || got != (Request{}) || !strings.Contains(err.Error(), "2,+imex=0-3") {
		t.Errorf("%#v, %v", got, err)
	}
}

func TestParseFeature(t *testing.T) {
	for in, want := range map[string]gpu.Feature{"gds": "gds", " +GDS ": "gds", "+imex=3-7": "imex=3-7", "+ imex=3": "imex=3"} {
		if got, err := ParseFeature(in); got != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "+", "gds,imex=1", "gds\n+imex=1", "imex", strings.Repeat("g", 9999)} {
		if got, err := ParseFeature(in); got != "" || !errors.Is(err, ErrBad) || len(err.Error()) > 300 {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

// Order and repetition of the words don't matter, and the canonical text is parsed to the same
// features.
func TestFeaturesAreASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"gds", "gdrcopy", "nvswitch", "fabricmanager", "imex=2-9"}), 1, 5, rapid.ID).Draw(t, "words")
		text := func(label string) string {
			order := rapid.Permutation(append(slices.Clone(words), words[0])).Draw(t, label)
			return "+" + strings.Join(order, ",+")
		}
		a, errA := Parse("2," + text("a"))
		b, errB := Parse(text("b") + ",2")
		if errA != nil || errB != nil || a != b || len(a.Features()) != len(words) {
			t.Fatalf("%q, %q, %v, %v", a, b, errA, errB)
		}
		for _, f := range a.Features() {
			if again, err := ParseFeature("+" + string(f)); err != nil || again != f || !slices.Contains(gpu.FeatureNames(), f.Name()) {
				t.Fatalf("%q: %q, %v", f, again, err)
			}
		}
	})
}
