package isolation

import (
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/devices"
)

// writeRules writes the new rule list: an allow-list is kept without its rules for accelerators, any
// other list is evaluated into a table and rewritten as an allow-list.
func (w *restriction) writeRules(have []edits.Rule, h Host) {
	list, ok := w.filterAllowList(have)
	if !ok {
		list = w.rewriteAsAllowList(have, h)
	}
	for _, n := range w.leased {
		if n.Access != "" {
			list = append(list, n.Rule())
		}
	}
	w.edits.Rules = list
}

// filterAllowList keeps a plain allow-list (deny all, then nothing but allows) without
// the rules for accelerators. ok is false if the list isn't one, or if a rule for
// every major opens more than mknod.
func (w *restriction) filterAllowList(have []edits.Rule) (list []edits.Rule, ok bool) {
	if len(have) == 0 || have[0].Allow || !devices.MatchesAll(have[0]) {
		// Without this rule crun leaves all other devices allowed, and ignores an error of setting
		// the rules.
		list = append(list, edits.Rule{Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"})
	}
	allows := false
	for _, r := range have {
		switch {
		case !r.Allow && (allows || !devices.MatchesAll(r)), devices.MatchesAll(r) && r.Allow, w.opensAccelerator(r) && r.Major == edits.Any:
			return nil, false
		case r.Allow && w.isLeasedRule(r):
		case r.Allow && w.concernsAccelerator(r):
			w.noteRemoval("rule", devices.Format(r), "", whyForeign)
			list = append(list, w.withoutAccelerators(r)...)
		default:
			list = append(list, r)
		}
		allows = allows || r.Allow
	}
	return list, true
}

// concernsAccelerator reports whether the rule matches devices with an accelerator's major.
func (w *restriction) concernsAccelerator(r edits.Rule) bool {
	return r.Type == "c" && w.accelerators[r.Major] && !slices.Contains(w.ordinary, Number{r.Major, r.Minor})
}

// withoutAccelerators returns the part of a rule for an accelerator's major that matches ordinary
// devices.
func (w *restriction) withoutAccelerators(r edits.Rule) (list []edits.Rule) {
	for _, n := range w.ordinary {
		if r.Minor == edits.Any && n.Major == r.Major {
			list = append(list, edits.Rule{Allow: true, Type: "c", Major: n.Major, Minor: n.Minor, Access: r.Access})
		}
	}
	return list
}

// isLeasedRule reports whether the rule is one of the leased nodes' rules, which are appended at the
// end.
func (w *restriction) isLeasedRule(r edits.Rule) bool {
	return slices.ContainsFunc(w.leased, func(n edits.Node) bool { return n.Rule() == r })
}

// opensAccelerator reports whether the rule allows opening at least one accelerator.
func (w *restriction) opensAccelerator(r edits.Rule) bool {
	switch {
	case !r.Allow:
		return false
	case devices.MatchesAll(r):
		return true
	case r.Type != "c" || !strings.ContainsAny(r.Access, "rw"):
		return false
	}
	return r.Major == edits.Any || w.concernsAccelerator(r)
}

// DenyAccelerators lists rules that deny every accelerator of the host, followed by rules that allow
// devices with an accelerator's major again: ordinary devices, and devices that rules allow
// individually. The last rule that concerns a device decides.
func DenyAccelerators(h Host, rules []edits.Rule) (denied []edits.Rule) {
	accelerators := gpu.AcceleratorMajors(h.Majors)
	for _, major := range slices.Sorted(maps.Keys(accelerators)) {
		denied = append(denied, edits.Rule{Type: "c", Major: major, Minor: edits.Any, Access: "rwm"})
	}
	for _, n := range h.Ordinary {
		denied = append(denied, edits.Rule{Allow: true, Type: "c", Major: n.Major, Minor: n.Minor, Access: "rwm"})
	}
	if slices.ContainsFunc(rules, func(r edits.Rule) bool { return r.Allow && devices.MatchesAll(r) }) {
		return denied // "allow all" is no permission for single accelerators
	}
	for _, r := range rules {
		if r.Allow && namesSingle(r) && accelerators[r.Major] {
			denied = append(denied, r)
		}
	}
	return denied
}

// maxGraphicsMinor is the highest minor of DRM in older kernels: 64 cards, their control and
// render nodes.
const maxGraphicsMinor = 191

// DenyEachAccelerator is [DenyAccelerators] without allow rules, so the order doesn't matter (cgroup
// version 1). Where ordinary devices share a major with accelerators, it denies every other minor
// individually, up to maxMinor, the host's highest DRM minor, or maxGraphicsMinor if that is higher.
func DenyEachAccelerator(h Host, maxMinor int) (rules []edits.Rule) {
	for _, major := range slices.Sorted(maps.Keys(gpu.AcceleratorMajors(h.Majors))) {
		if !slices.ContainsFunc(h.Ordinary, func(n Number) bool { return n.Major == major }) {
			rules = append(rules, edits.Rule{Type: "c", Major: major, Minor: edits.Any, Access: "rwm"})
			continue
		}
		for minor := range int64(max(maxGraphicsMinor, maxMinor) + 1) {
			if !slices.Contains(h.Ordinary, Number{major, minor}) {
				rules = append(rules, edits.Rule{Type: "c", Major: major, Minor: minor, Access: "rwm"})
			}
		}
	}
	return rules
}

// namesSingle reports whether a rule is about one character device.
func namesSingle(r edits.Rule) bool {
	return r.Type == "c" && r.Major != edits.Any && r.Minor != edits.Any
}

// OpensAllOfMajor reports whether a rule allows all devices, or all devices of an accelerator's
// major. An empty list counts, because runtimes read it as "allow all".
func OpensAllOfMajor(rules []edits.Rule, h Host) bool {
	accelerators := gpu.AcceleratorMajors(h.Majors)
	return len(rules) == 0 || slices.ContainsFunc(rules, func(r edits.Rule) bool {
		whole := devices.MatchesAll(r) || r.Type == "c" && r.Minor == edits.Any && (r.Major == edits.Any || accelerators[r.Major])
		return r.Allow && whole && (devices.MatchesAll(r) || strings.ContainsAny(r.Access, "rw"))
	})
}

// WithoutWholeMajors returns the rules of a running container without those that allow all devices
// of an accelerator's major. Rules for single devices stay.
func WithoutWholeMajors(rules []edits.Rule, h Host) ([]edits.Rule, error) {
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	for _, r := range rules {
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, r.Spec())
		if namesSingle(r) {
			h.Ordinary = append(slices.Clip(h.Ordinary), Number{r.Major, r.Minor})
		}
	}
	e, _, err := RestrictDevices(spec, h, nil)
	return e.Rules, err
}
