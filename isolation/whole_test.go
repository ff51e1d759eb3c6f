package isolation

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cdi/edits"
)

// Rules for single devices are another tool's gift, and stay.
func TestWithoutWholeMajors(t *testing.T) {
	all, none := allow("a", every, every, "rwm"), deny("a", every, every, "rwm")
	mem, one, display := allow("c", 1, every, "rwm"), allow("c", 195, 3, "rw"), allow("c", 226, 0, "rw")
	h := testHost()
	h.Ordinary = []Number{{226, 0}}
	for _, tt := range []struct {
		name  string
		rules []edits.Rule
		opens bool
		left  []edits.Rule
	}{
		{"nothing", []edits.Rule{none, mem}, false, nil},
		{"one GPU", []edits.Rule{none, one, mem}, false, nil},
		{"a whole major", []edits.Rule{none, allow("c", 195, every, "rw"), mem, one}, true, []edits.Rule{none, one, mem, one}},
		{"a major beside a display", []edits.Rule{none, allow("c", 226, every, "rw"), mem}, true, []edits.Rule{none, display, mem}},
		{"a driver's dynamic major", []edits.Rule{none, allow("c", 508, every, "rw"), mem}, true, []edits.Rule{none, mem}},
		{"mknod of all", []edits.Rule{none, allow("c", every, every, "m"), mem}, false, nil},
		{"no rules", nil, true, nil},
		{"all", []edits.Rule{all}, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := OpensAllOfMajor(tt.rules, h); got != tt.opens {
				t.Errorf("OpensAllOfMajor = %v", got)
			}
			if tt.left == nil {
				return
			}
			left, err := WithoutWholeMajors(tt.rules, h)
			if d := cmp.Diff(tt.left, left); d != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
		})
	}
}
