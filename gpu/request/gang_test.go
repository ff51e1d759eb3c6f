package request

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
)

func TestNewGang(t *testing.T) {
	r := mustParse(t, ` "2 ; h100:2,nics=auto,+gds ;device=0; 1G.10GB,v/c=a" `)
	if want := "2;h100:2,nics=auto,+gds;device=0;1g.10gb,v/c=a"; r.String() != want {
		t.Errorf("got %q, want %q", r, want)
	}
	if r.Count() != 6 || !r.GPUs() || r.IsAll() || r.IDs() != nil || r.Model() != "" || r.Profile() != "" {
		t.Errorf("accessors: %d %v %v %v %q %q", r.Count(), r.GPUs(), r.IsAll(), r.IDs(), r.Model(), r.Profile())
	}
	if d := cmp.Diff([]string{"v/c=a"}, r.CDI()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]gpu.Feature{"gds"}, r.Features()); d != "" {
		t.Error(d)
	}
	again, err := NewGang(r.Parts())
	if err != nil || again != r {
		t.Errorf("%q of its own parts: %v", again, err)
	}
	if with, err := r.With("gdrcopy"); err != nil || strings.Count(with.String(), "+gdrcopy") != 4 {
		t.Errorf("with a feature: %q, %v", with, err)
	}
	one, err := NewGang([]Request{mustParse(t, "2")})
	if err != nil || one != mustParse(t, "2") || one.Parts() != nil {
		t.Errorf("of one part: %q, %v", one, err)
	}
}

func TestNewGangRefuses(t *testing.T) {
	tests := []struct{ in, says string }{
		{"2;", `part "" of the gang asks for no GPU`},
		{"2;0", `part "0" of the gang asks for no GPU`},
		{"2;;1", "asks for no GPU"},
		{"2;?", `part "?" of the gang`},
		{"device=0;device=1,0", "two parts of the gang name 0"},
		{"v/c=a;1,v/c=a", "two parts of the gang name v/c=a"},
		{strings.Repeat("1;", 300), "more than 256 parts"},
		{strings.TrimSuffix(strings.Repeat("1b:00.0,1c:00.0,1d:00.0,1e:00.0,1f:00.0,2b:00.0,2c:00.0,2e:00.0;", 120), ";"), "name 0000:1b:00.0"},
		{strings.TrimSuffix(strings.Repeat("mem>1111111Ki,mem<9999999Ti,nic=123;", 225), ";"), "longer than 8192"},
	}
	for _, tt := range tests {
		t.Run(tt.says, func(t *testing.T) {
			r, err := Parse(tt.in)
			if !errors.Is(err, ErrBad) || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 400 {
				t.Errorf("got %q, %v, want %q", r, err, tt.says)
			}
		})
	}
	two := mustParse(t, "1;1")
	for _, parts := range [][]Request{nil, {{}}, {{}, mustParse(t, "1")}, {two, two}} {
		if r, err := NewGang(parts); !errors.Is(err, ErrBad) {
			t.Errorf("%v: %q, %v", parts, r, err)
		}
	}
}

func TestJoinGangs(t *testing.T) {
	gang, one := mustParse(t, "1;1"), mustParse(t, "1")
	if r, ok := gang.Join(gang); !ok || r != gang {
		t.Errorf("with itself: %q, %v", r, ok)
	}
	for _, o := range []Request{one, mustParse(t, "v/c=a"), mustParse(t, "1;2")} {
		if r, ok := gang.Join(o); ok {
			t.Errorf("with %s: %q", o, r)
		}
		if r, ok := o.Join(gang); ok {
			t.Errorf("%s with it: %q", o, r)
		}
	}
}

func TestJoinNICs(t *testing.T) {
	tests := []struct{ a, b, want string }{
		{"2,nics=auto", "2", "2,nics=auto"},
		{"2", "nics=1", "2,nics=1"},
		{"nics=1", "v/c=a", "nics=1,v/c=a"},
		{"2,nics=auto", "2,nics=auto,+gds", "2,nics=auto,+gds"},
		{"2,nics=auto", "2,nics=1", ""},
	}
	for _, tt := range tests {
		for _, pair := range [][2]string{{tt.a, tt.b}, {tt.b, tt.a}} {
			got, ok := mustParse(t, pair[0]).Join(mustParse(t, pair[1]))
			if ok != (tt.want != "") || ok && got != mustParse(t, tt.want) {
				t.Errorf("%s with %s: %q, %v, want %q", pair[0], pair[1], got, ok, tt.want)
			}
		}
	}
}
