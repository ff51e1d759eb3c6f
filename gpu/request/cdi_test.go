package request

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
			r, err := Parse(tt.in)
			if tt.err != "" {
				if err == nil || !errors.Is(err, ErrBad) || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.err) {
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
			if again, err := Parse(tt.text); err != nil || again != r {
				t.Errorf("Parse(%q) = %#v, %v, want %#v", tt.text, again, err, r)
			}
		})
	}
}
