package isolation

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/devices"
)

// Rules for single devices stay, because another tool has set them.
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

// Displays and single devices aren't denied to a running container, whatever minors the kernel
// gives to other cards.
func TestDenyAccelerators(t *testing.T) {
	h := testHost()
	h.Ordinary = []Number{{226, 0}}
	single := []edits.Rule{allow("c", 195, 3, "rw"), allow("c", 226, every, "rw")}
	for _, tt := range []struct {
		name  string
		rules []edits.Rule
		n     Number
		want  bool
	}{
		{"a display", nil, Number{226, 0}, true},
		{"a card", nil, Number{226, 1}, false},
		{"a card of a newer kernel", nil, Number{226, 4711}, false},
		{"a GPU", nil, Number{195, 3}, false},
		{"a GPU of its own", single, Number{195, 3}, true},
		{"another GPU", single, Number{195, 4}, false},
		{"a card of a major", single, Number{226, 1}, false},
		{"a GPU among all devices", append([]edits.Rule{allow("a", every, every, "rwm")}, single...), Number{195, 3}, false},
		{"no accelerator", nil, Number{1, 3}, true},
	} {
		rules := append([]edits.Rule{allow("a", every, every, "rwm")}, DenyAccelerators(h, tt.rules)...)
		if got := devices.Allowed(rules, "c", tt.n.Major, tt.n.Minor, "rw"); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	each := DenyEachAccelerator(h, 200)
	for minor, want := range map[int64]bool{0: false, 191: true, 200: true, 201: false} {
		if got := slices.Contains(each, deny("c", 226, minor, "rwm")); got != want {
			t.Errorf("DenyEachAccelerator has minor %d: %v", minor, got)
		}
	}
}
