package devices

import (
	"testing"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// TestDenyAgain: a new denial replaces the former one and leaves the runtime's program alone. A
// denial whose program was detached is not in force.
func TestDenyAgain(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		if h.Version == cgroup.V1 {
			return // a list of version 1 shows no former denials
		}
		all := []question{{"c", 195, 3, "rw"}, {"c", 195, 5, "rw"}, {"c", 508, 3, "rw"}, {"c", 1, 3, "rw"}}
		p := probe(t, h, path, all)
		check := func(name string, want ...bool) {
			t.Helper()
			for i, got := range p.ask(t, all) {
				if got != want[i] {
					t.Errorf("%s: %+v: %v", name, all[i], got)
				}
			}
		}
		testutil.Must(t, Apply(h, path, []edits.Rule{allow("a", every, every, "rwm")}))
		whole := []edits.Rule{deny("c", 195, every, "rwm"), allow("c", 195, 3, "rw")}
		for _, tt := range []struct {
			name   string
			denied []edits.Rule
			want   []bool
		}{
			{"all but one", whole, []bool{true, false, true, true}},
			{"again", whole, []bool{true, false, true, true}},
			{"another major", []edits.Rule{deny("c", 508, every, "rwm")}, []bool{true, true, false, true}},
		} {
			testutil.Must(t, Deny(h, path, tt.denied))
			check(tt.name, tt.want...)
			programs(t, h, path, 2)
			if is, err := IsDenied(h, path, tt.denied); !is || err != nil {
				t.Errorf("%s: IsDenied = %v, %v", tt.name, is, err)
			}
		}
		for range 2 {
			testutil.Must(t, Undeny(h, path))
			check("nothing", true, true, true, true)
			programs(t, h, path, 1)
		}
		if is, err := IsDenied(h, path, whole); is || err != nil {
			t.Errorf("nothing: IsDenied = %v, %v", is, err)
		}
		testutil.Must(t, Deny(h, path, whole))
		check("closed again", true, false, true, true)
	})
}
