package control

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetEnv(t *testing.T) {
	for _, tt := range []struct {
		name            string
		env, more, want []string
	}{
		{name: "nothing", env: []string{"A=1", "B=2"}, want: []string{"A=1", "B=2"}},
		{name: "new", env: []string{"A=1"}, more: []string{"B=2", "AA=3"}, want: []string{"A=1", "B=2", "AA=3"}},
		{name: "replaced", env: []string{"A=1", "B=2", "A=3"}, more: []string{"A=4"}, want: []string{"B=2", "A=4"}},
		{name: "set twice", env: []string{"A=1"}, more: []string{"B=1", "A=2", "B=3"}, want: []string{"A=2", "B=3"}},
		{name: "empty", more: []string{"A="}, want: []string{"A="}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, setEnv(tt.env, tt.more)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// TestSetManyVariables: a file with half a million variables takes no time that grows with their square.
func TestSetManyVariables(t *testing.T) {
	var more []string
	for i := range 500_000 {
		more = append(more, fmt.Sprintf("A%d=x", i))
	}
	if got := setEnv(more, more); len(got) != len(more) {
		t.Errorf("%d variables", len(got))
	}
}
