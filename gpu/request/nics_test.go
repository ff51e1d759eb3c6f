package request

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/spell"
)

func TestRequestNICs(t *testing.T) {
	tests := []struct{ in, text, nics string }{
		{"2,nics=auto", "2,nics=auto", "auto"},
		{"NICS = Auto , 2", "2,nics=auto", "auto"},
		{"1,nic=2", "1,nics=2", "2"},
		{"1,nics=02,nics=2", "1,nics=2", "2"},
		{"1,nics=mlx5_0 + MLX5_3", "1,nics=mlx5_0+mlx5_3", "mlx5_0+mlx5_3"},
		{"0,3,nics=1", "device=0,3,nics=1", "1"},
		{"h100:2,mem>=40G,nics=1,+gds,v/c=a", "h100:2,mem>=40G,nics=1,+gds,v/c=a", "1"},
		{"nics=mlx5_0", "nics=mlx5_0", "mlx5_0"},
		{"device=nics=2", "nics=2", "2"},
		{"v/c=a,nics=2", "nics=2,v/c=a", "2"},
		{"2,nics=none", "2", ""},
		{"2,nics=0", "2", ""},
		{"2;1,nics=auto;nics=2;1,nics=auto", "2;1,nics=auto;nics=2;1,nics=auto", "auto;2"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r := mustParse(t, tt.in)
			if r.String() != tt.text || r.NICs() != tt.nics {
				t.Errorf("got %q with NICs %q", r, r.NICs())
			}
			if again := mustParse(t, r.String()); again != r {
				t.Errorf("%q: %#v, want %#v", r, again, r)
			}
		})
	}
}

func TestRequestNICsRefuses(t *testing.T) {
	tests := []struct {
		in, says string
		none     bool
	}{
		{in: "nics=auto", says: "GPUs that the NICs are near"},
		{in: "v/c=a,nics=auto", says: "GPUs that the NICs are near"},
		{in: "nics=none", says: "asks for no GPU", none: true},
		{in: "0,nics=1,mem>1G", says: `"device=0"`},
		{in: "none,nics=1", says: "asks for no GPU"},
		{in: "nics=1,+gds", says: "asks for no GPU to go with it"},
		{in: "2,nics=1,nics=2", says: "in two ways"},
		{in: "2,nics=none,nics=2", says: "in two ways"},
		{in: "2,nics=", says: `"" isn't a NIC`},
		{in: "2,nics=a+", says: `"" isn't a NIC`},
		{in: "2,nics=a+1", says: `"1" can't be combined with names of NICs`},
		{in: "2,nics=a+auto", says: `"auto" can't be combined with names of NICs`},
		{in: "2,nics=a+a", says: "a is named twice"},
		{in: "2,nics=none+a", says: `"none" can't be combined`},
		{in: "2,nics=1000", says: "no node has so many NICs"},
		{in: "2,nics=../etc", says: "isn't the name of a CDI device"},
		{in: "2,nics=" + strings.Repeat("x", 65), says: "isn't a NIC"},
		{in: "2,nics>=2", says: "unknown condition"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r, err := Parse(tt.in)
			if !errors.Is(err, ErrBad) || errors.Is(err, ErrNone) != tt.none || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %q, %v, want %q", r, err, tt.says)
			}
		})
	}
}

func TestWithNICs(t *testing.T) {
	tests := []struct{ in, words, want, err string }{
		{"2", "auto", "2,nics=auto", ""},
		{"2", " Mlx5_0, mlx5_3 ", "2,nics=mlx5_0+mlx5_3", ""},
		{"2", "none", "2", ""},
		{"2,nics=auto", "auto", "2,nics=auto", ""},
		{"2;1g.10gb;v/c=a", "1", "2,nics=1;1g.10gb,nics=1;v/c=a", ""},
		{"v/c=a", "1", "nics=1,v/c=a", ""},
		{"", "mlx5_0", "nics=mlx5_0", ""},
		{"", "none", "", ""},
		{"", "auto", "", "GPUs that the NICs are near"},
		{"2,nics=1", "2", "", `NICs are asked for as 1 and as "2"`},
		{"2,nics=1", "none", "", `NICs are asked for as 1 and as "none"`},
		{"2", "a+b", "2,nics=a+b", ""},
		{"2", "a + b,c", "2,nics=a+b+c", ""},
		{"2", "auto,none", "", `"auto" can't be combined with names of NICs`},
		{"2", "a b", "", `"a b" isn't a NIC; known are auto, none, a count (2), and names (mlx5_0+mlx5_3)`},
		{"2", "", "", `"" isn't a NIC`},
		{"2", strings.Repeat("a,", 5000), "", "named twice"},
	}
	for _, tt := range tests {
		t.Run(tt.in+" "+spell.Quote(tt.words, maxWord), func(t *testing.T) {
			var r Request
			if tt.in != "" {
				r = mustParse(t, tt.in)
			}
			got, err := r.WithNICs(tt.words)
			if tt.err != "" {
				if !errors.Is(err, ErrBad) || !strings.Contains(err.Error(), tt.err) || got != (Request{}) {
					t.Fatalf("got %q, %v, want %q", got, err, tt.err)
				}
				return
			}
			if err != nil || got.String() != tt.want {
				t.Fatalf("got %q, %v, want %q", got, err, tt.want)
			}
			if tt.want != "" && mustParse(t, tt.want) != got {
				t.Errorf("%#v isn't what %q says", got, tt.want)
			}
		})
	}
}
