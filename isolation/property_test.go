package isolation

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/devices"
)

// cgroup is a reference for the meaning of a rule list: cgroup v1's behaviours and exceptions, as
// runc emulates them for both versions. It is written from the kernel's documentation of the
// devices controller, not from the code under test.
type cgroup struct {
	allowAll   bool
	exceptions map[triple]string
	// refused: runc refuses the list.
	refused bool
}

type triple struct {
	kind         string
	major, minor int64
}

func run(rules []specs.LinuxDeviceCgroup) *cgroup {
	c := &cgroup{exceptions: map[triple]string{}}
	for _, s := range rules {
		r := edits.FromSpec(s)
		if r.Type == "" || r.Type == "a" {
			c.allowAll, c.exceptions = r.Allow, map[triple]string{}
			continue
		}
		t := triple{r.Type, r.Major, r.Minor}
		if r.Allow != c.allowAll {
			c.exceptions[t] = unite(c.exceptions[t], r.Access)
			continue
		}
		for _, wider := range []triple{{t.kind, every, t.minor}, {t.kind, t.major, every}, {t.kind, every, every}} {
			if wider != t && overlap(c.exceptions[wider], r.Access) {
				c.refused = true
			}
		}
		c.exceptions[t] = without(c.exceptions[t], r.Access)
	}
	return c
}

// may reports whether a device can be opened with this access.
func (c *cgroup) may(kind string, major, minor int64, access string) bool {
	for t, a := range c.exceptions {
		if t.kind != kind || t.major != every && t.major != major || t.minor != every && t.minor != minor {
			continue
		}
		if c.allowAll && overlap(a, access) {
			return false
		}
		if !c.allowAll && without(access, a) == "" {
			return true
		}
	}
	return c.allowAll
}

func unite(a, b string) string { return a + without(b, a) }

func without(a, b string) string {
	rest := ""
	for _, c := range a {
		if !overlap(b, string(c)) {
			rest += string(c)
		}
	}
	return rest
}

func overlap(a, b string) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				return true
			}
		}
	}
	return false
}

// lastWins reads a list as crun does on cgroup v2: the last rule that matches the device and the
// whole access decides; without one the access is denied.
func lastWins(rules []specs.LinuxDeviceCgroup, kind string, major, minor int64, access string) bool {
	for i := len(rules) - 1; i >= 0; i-- {
		r := edits.FromSpec(rules[i])
		if (r.Type == "" || r.Type == "a" || r.Type == kind) && (r.Major == every || r.Major == major) &&
			(r.Minor == every || r.Minor == minor) && without(access, r.Access) == "" {
			return r.Allow
		}
	}
	return false
}

func drawRules(t *rapid.T) []edits.Rule {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) edits.Rule {
		r := edits.Rule{
			Allow: rapid.Bool().Draw(t, "allow"),
			// Now and then a rule denies or allows everything, as engines' rules do.
			Type:   rapid.SampledFrom([]string{"", "a", "c", "c", "c", "c", "b", "b"}).Draw(t, "type"),
			Major:  rapid.SampledFrom([]int64{every, 1, 5, 8, 10, 195, 226, 508, 600}).Draw(t, "major"),
			Minor:  rapid.SampledFrom([]int64{every, every, 0, 1, 2}).Draw(t, "minor"),
			Access: rapid.SampledFrom([]string{"rwm", "rw", "r", "w", "m", "rm"}).Draw(t, "access"),
		}
		if r.Type == "" || r.Type == "a" {
			r.Major, r.Minor, r.Access = every, every, "rwm"
		}
		return r
	}), 0, 7).Draw(t, "rules")
}

// TestDeviceRulesHold: a container opens the accelerators that it leased and no others, whatever
// rules, nodes and binds the spec has; access to other devices stays the same.
func TestDeviceRulesHold(t *testing.T) {
	accelerators := gpu.AcceleratorMajors(testHost().Majors)
	rapid.Check(t, func(t *rapid.T) {
		spec := specOf(drawRules(t)...)
		nodes := leased(rapid.SampledFrom([][]int64{{0}, {1}, {0, 2}}).Draw(t, "leased")...)
		if rapid.Bool().Draw(t, "with a node of a shared major") {
			nodes = append(nodes, edits.Node{Path: "/dev/infiniband/rdma_cm", Type: "c", Major: 10, Minor: 58, Access: "rw"})
		}
		if rapid.Bool().Draw(t, "no lease") {
			nodes = nil
		}
		host := testHost()
		if rapid.Bool().Draw(t, "with a display") {
			host.Ordinary = []Number{{226, 1}, {226, 9}}
		}
		accelerator := func(n Number) bool { return accelerators[n.Major] && !slices.Contains(host.Ordinary, n) }
		before := spec.Linux.Resources.Devices
		e, said, err := RestrictDevices(spec, host, nodes)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Apply(spec); err != nil {
			t.Fatal(err)
		}
		after := spec.Linux.Resources.Devices
		was, is := run(before), run(after)
		if is.refused && e.Rules != nil {
			t.Fatalf("runc refuses %s", show(after))
		}
		if is.allowAll {
			t.Fatalf("not an allow-list: %s", show(after))
		}
		for _, major := range []int64{1, 5, 10, 136, 195, 226, 231, 508, 511} {
			for minor := range int64(4) {
				for _, access := range []string{"r", "w", "rw"} {
					got, crun := is.may("c", major, minor, access), lastWins(after, "c", major, minor, access)
					// Lists that are passed on may mean different things to different runtimes, as
					// before: a list that opens no accelerator, and access given in pieces.
					if got != crun && (e.Rules != nil && len(access) == 1 || accelerator(Number{major, minor})) {
						t.Fatalf("c %d:%d %s: runc says %v, crun %v: %s", major, minor, access, got, crun, show(after))
					}
					if accelerator(Number{major, minor}) {
						if want := has(nodes, major, minor); got != want {
							t.Fatalf("accelerator %d:%d %s: open %v, leased %v: %s", major, minor, access, got, want, show(after))
						}
						continue
					}
					sameAsBefore(t, was, got, before, after, "c", major, minor, access)
				}
			}
		}
		for _, major := range []int64{8, 9, 195} {
			sameAsBefore(t, was, is.may("b", major, 1, "r"), before, after, "b", major, 1, "r")
		}
		restrictTwiceOn(t, spec, host, nodes)
		if concerned, err := AcceleratorInSpec(spec, host); err != nil || concerned != (nodes != nil) && len(after) > 0 {
			t.Fatalf("AcceleratorInSpec of the walled spec, leased %v, said %q: %v, %s", nodes, said, err, show(after))
		}
	})
}

// sameAsBefore accepts that less is allowed than before only where the old list had a hole, or
// where runc would have refused it.
func sameAsBefore(t *rapid.T, was *cgroup, got bool, before, after []specs.LinuxDeviceCgroup, kind string, major, minor int64, access string) {
	want := was.may(kind, major, minor, access) || allowsInPieces(was, kind, major, minor, access)
	if got && !want && !was.refused {
		t.Fatalf("%s %d:%d %s is open now and wasn't: %s became %s", kind, major, minor, access, show(before), show(after))
	}
	if was.may(kind, major, minor, access) && !got && !was.refused && !hasHole(before) {
		t.Fatalf("%s %d:%d %s was open and isn't: %s became %s", kind, major, minor, access, show(before), show(after))
	}
}

// allowsInPieces reports whether each letter of the access was allowed, though not all by one rule.
func allowsInPieces(was *cgroup, kind string, major, minor int64, access string) bool {
	for _, letter := range access {
		if !was.may(kind, major, minor, string(letter)) {
			return false
		}
	}
	return true
}

// hasHole reports whether a single rule is denied after an allow.
func hasHole(rules []specs.LinuxDeviceCgroup) bool {
	allowed := false
	for _, s := range rules {
		r := edits.FromSpec(s)
		if allowed && !r.Allow && !devices.MatchesAll(r) {
			return true
		}
		allowed = allowed || r.Allow
	}
	return false
}

func has(nodes []edits.Node, major, minor int64) bool {
	for _, n := range nodes {
		if n.Major == major && n.Minor == minor {
			return true
		}
	}
	return false
}

func show(rules []specs.LinuxDeviceCgroup) string {
	s := ""
	for _, r := range rules {
		s += devices.Format(edits.FromSpec(r)) + "; "
	}
	return s
}
