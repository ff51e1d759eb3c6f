package isolation

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/devices"
)

// rewriteAsAllowList evaluates the rules and returns the result as an allow-list without
// accelerators.
func (w *restriction) rewriteAsAllowList(have []edits.Rule, h Host) []edits.Rule {
	t := newTable(have, h)
	allowAll := false
	for _, r := range have {
		if devices.MatchesAll(r) {
			allowAll = r.Allow
		} else if allowAll && r.Allow {
			// After "allow all" with denials, runc and the kernel lift a denial only by a rule with
			// exactly the same numbers and access. Ignoring this rule is the narrower reading.
			continue
		}
		if hole := t.applyRule(r); hole {
			w.noteRemoval("rule", devices.Entry(edits.Rule{Type: r.Type, Major: r.Major, Minor: edits.Any, Access: r.Access}), "", "deny "+devices.Entry(r)+" can't be said in an allow-list")
		}
	}
	for d, g := range t {
		if d.kind == "c" && w.accelerators[d.major] {
			t[d] = w.ordinaryPart(d.major, g)
		}
	}
	w.noteRemoval("rule", "allow a *:* rwm", "", whyAllowAll)
	return t.toAllowList()
}

// ordinaryPart returns the part of a grant for an accelerator's major that covers ordinary devices.
func (w *restriction) ordinaryPart(major int64, g *grant) *grant {
	rest := &grant{minors: map[int64]access{}}
	for _, n := range w.ordinary {
		if n.Major == major {
			rest.minors[n.Minor] = g.all | g.minors[n.Minor]
		}
	}
	return rest
}

// kind is all devices of one type and major; major Any, for block devices, is
// every one that no rule names.
type kind struct {
	kind  string
	major int64
}

// grant is what is allowed for a kind: on every minor, and on single ones.
type grant struct {
	all    access
	minors map[int64]access
}

// table holds what a rule list allows, for every kind that the host has or that
// the list names. Rules are applied in their order; where runtimes read a list
// differently, the narrower reading counts. What several rules allow of one kind is
// united.
type table map[kind]*grant

func newTable(rules []edits.Rule, h Host) table {
	t := table{{"b", edits.Any}: {}}
	for _, m := range h.Majors {
		t[kind{"c", int64(m.Number)}] = &grant{}
	}
	for _, r := range rules {
		if !devices.MatchesAll(r) && r.Major != edits.Any {
			t[kind{r.Type, r.Major}] = &grant{}
		}
	}
	for _, g := range t {
		g.minors = map[int64]access{}
	}
	return t
}

// applyRule applies one rule. It returns true if the rule denied a part of a wildcard; the whole
// wildcard is then denied.
func (t table) applyRule(r edits.Rule) (hole bool) {
	for k, g := range t {
		switch {
		case devices.MatchesAll(r):
			*g = grant{minors: map[int64]access{}}
			if r.Allow {
				g.all = everything
			}
		case k.kind != r.Type, r.Major != edits.Any && r.Major != k.major:
		case r.Allow:
			g.addAllowance(r)
		default:
			hole = g.addDenial(r) || hole
		}
	}
	return hole
}

func (g *grant) addAllowance(r edits.Rule) {
	if r.Minor == edits.Any {
		g.all |= parseAccess(r.Access)
	} else {
		g.minors[r.Minor] |= parseAccess(r.Access)
	}
}

func (g *grant) addDenial(r edits.Rule) (hole bool) {
	denied := parseAccess(r.Access)
	for minor := range g.minors {
		if r.Minor == edits.Any || r.Minor == minor {
			g.minors[minor] &^= denied
		}
	}
	hole = r.Minor != edits.Any && g.all&denied != 0
	g.all &^= denied
	return hole
}

// toAllowList writes the table as deny all and allows, in a fixed order. A wildcard for
// block devices is as wide as the narrowest of the named ones.
func (t table) toAllowList() []edits.Rule {
	list := []edits.Rule{{Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"}}
	rest := t[kind{"b", edits.Any}]
	for k, g := range t {
		if k.kind == "b" {
			rest.all &= g.all
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(t), compareKinds) {
		g := t[k]
		covered := k.kind == "b" && k.major != edits.Any && g.all&^rest.all == 0
		if g.all != 0 && !covered {
			list = append(list, edits.Rule{Allow: true, Type: k.kind, Major: k.major, Minor: edits.Any, Access: g.all.String()})
		}
		for _, minor := range slices.Sorted(maps.Keys(g.minors)) {
			if a := g.minors[minor]; a&^g.all != 0 {
				list = append(list, edits.Rule{Allow: true, Type: k.kind, Major: k.major, Minor: minor, Access: a.String()})
			}
		}
	}
	return list
}

func compareKinds(a, b kind) int {
	return cmp.Or(-cmp.Compare(a.kind, b.kind), cmp.Compare(a.major, b.major))
}

// access is a set of "r", "w" and "m".
type access uint8

const everything access = 7

func parseAccess(s string) access {
	var a access
	for i, c := range "rwm" {
		if strings.ContainsRune(s, c) {
			a |= 1 << i
		}
	}
	return a
}

func (a access) String() string {
	s := ""
	for i, c := range "rwm" {
		if a&(1<<i) != 0 {
			s += string(c)
		}
	}
	return s
}
