package gpu

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseCapabilities(t *testing.T) {
	tests := []struct {
		in   string
		want Capabilities
		text string
	}{
		{"", Compute | Utility, "compute,utility"},
		{" , ", Compute | Utility, "compute,utility"},
		{"utility,compute", Compute | Utility, "compute,utility"},
		{"all", Compute | Compat32 | Graphics | Utility | Video | Display | NGX, "all"},
		{"video,all", Compute | Compat32 | Graphics | Utility | Video | Display | NGX, "all"},
		{"all,video", Compute | Compat32 | Graphics | Utility | Video | Display | NGX, "all"},
		{"compute,compat32,graphics,utility,video,display,ngx", allCapabilities, "all"},
		{" Graphics, DISPLAY,,display ", Graphics | Display, "graphics,display"},
		{"utility", Utility, "utility"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseCapabilities(tt.in)
			if err != nil || got != tt.want || got.String() != tt.text {
				t.Errorf("%v (%#x), %v; want %s", got, uint8(got), err, tt.text)
			}
		})
	}
	if none := Capabilities(0); none.String() != "none" || none.Has(Compute) {
		t.Errorf("the empty set: %s", none)
	}
	if !(Compute | Video).Has(Compute|Video) || (Compute | Video).Has(Compute|NGX) {
		t.Error("Has isn't about all of them")
	}
}

func TestParseCapabilitiesRefuses(t *testing.T) {
	for _, in := range []string{"cuda", "compute,none", "compute utility", "compute\n", "al\x00l", strings.Repeat("x", 9999)} {
		got, err := ParseCapabilities(in + ",x")
		if err == nil || got != 0 || !strings.Contains(err.Error(), "known: compute, compat32, graphics, utility, video, display, ngx, all") ||
			len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

func TestCapabilitiesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Capabilities(rapid.IntRange(1, int(allCapabilities)).Draw(t, "set"))
		if again, err := ParseCapabilities(c.String()); err != nil || again != c {
			t.Fatalf("%s: %s, %v", c, again, err)
		}
	})
}

func FuzzParseCapabilities(f *testing.F) {
	for _, s := range []string{"", "all", "compute,utility", "graphics,,Video", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCapabilities(s)
		if err != nil {
			if c != 0 || len(err.Error()) > 600 || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q: %v, %q", s, c, err)
			}
			return
		}
		if again, err := ParseCapabilities(c.String()); c == 0 || err != nil || again != c {
			t.Fatalf("%q: %s, %s, %v", s, c, again, err)
		}
	})
}
