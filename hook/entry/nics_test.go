package entry

import (
	"strings"
	"testing"
)

// TestWithNICs: NICs are added to a request as features are.
func TestWithNICs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request string
		with    []string
		want    string // or what the error says
	}{
		{"near", "2", []string{"nics=auto"}, "2,nics=auto"},
		{"count and feature", "2", []string{"nics=2", "gds"}, "2,nics=2,+gds"},
		{"two names", "1", []string{"nics=mlx5_0", "nics=mlx5_3"}, "1,nics=mlx5_0+mlx5_3"},
		{"the same", "2,nics=auto", []string{"nics=auto"}, "2,nics=auto"},
		{"another", "2,nics=1", []string{"nics=2"}, "NICs are asked for as 1 and as"},
		{"two ways", "2", []string{"nics=auto", "nics=2"}, "nics"},
		{"no GPU", "", []string{"nics=auto"}, "no GPU that it would be for"},
		{"a gang's", "2;2", nil, "the parts are those of a gang"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := RequestSet{Additions: tt.with}
			if tt.request != "" {
				a.Requests = []string{tt.request}
			}
			r, ok, err := a.Resolve()
			if err == nil && (!ok || r.String() != tt.want) || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q, %v, %v; want %q", r, ok, err, tt.want)
			}
		})
	}
}
