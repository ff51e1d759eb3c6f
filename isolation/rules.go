package isolation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/devices"
)

// writeRules writes the new rule list: what engines write as an allow-list is kept and
// filtered, anything else is worked out as a table and written anew.
func (w *wall) writeRules(have []edits.Rule, h Host) {
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
func (w *wall) filterAllowList(have []edits.Rule) (list []edits.Rule, ok bool) {
	if len(have) == 0 || have[0].Allow || !devices.Total(have[0]) {
		// Without it crun leaves open what isn't named, and treats a failure to
		// set the rules as none.
		list = append(list, edits.Rule{Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"})
	}
	allows := false
	for _, r := range have {
		switch {
		case !r.Allow && (allows || !devices.Total(r)), devices.Total(r) && r.Allow, w.opensAccelerator(r) && r.Major == edits.Any:
			return nil, false
		case r.Allow && w.leasedRule(r):
		case r.Allow && w.concernsAccelerator(r):
			w.noteRemoval("rule", "allow "+ruleText(r), "", whyForeign)
			list = append(list, w.withoutAccelerators(r)...)
		default:
			list = append(list, r)
		}
		allows = allows || r.Allow
	}
	return list, true
}

// concernsAccelerator says that the rule speaks of devices of accelerators.
func (w *wall) concernsAccelerator(r edits.Rule) bool {
	return r.Type == "c" && w.accelerators[r.Major] && !slices.Contains(w.ordinary, Number{r.Major, r.Minor})
}

// withoutAccelerators is what is left of a rule for an accelerator's major when only ordinary
// devices count.
func (w *wall) withoutAccelerators(r edits.Rule) (list []edits.Rule) {
	for _, n := range w.ordinary {
		if r.Minor == edits.Any && n.Major == r.Major {
			list = append(list, edits.Rule{Allow: true, Type: "c", Major: n.Major, Minor: n.Minor, Access: r.Access})
		}
	}
	return list
}

// leasedRule says that the rule is one of those that come last anyway.
func (w *wall) leasedRule(r edits.Rule) bool {
	return slices.ContainsFunc(w.leased, func(n edits.Node) bool { return n.Rule() == r })
}

// opensAccelerator says that the rule lets at least one accelerator be opened.
func (w *wall) opensAccelerator(r edits.Rule) bool {
	switch {
	case !r.Allow:
		return false
	case devices.Total(r):
		return true
	case r.Type != "c" || !strings.ContainsAny(r.Access, "rw"):
		return false
	}
	return r.Major == edits.Any || w.concernsAccelerator(r)
}

func ruleText(r edits.Rule) string {
	number := func(n int64) string {
		if n == edits.Any {
			return "*"
		}
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s %s:%s %s", r.Type, number(r.Major), number(r.Minor), r.Access)
}

// DenyAccelerators lists rules that deny every accelerator of the host, followed by rules that
// allow what has the major of one: ordinary devices, and those that rules name one by one. The
// last rule that concerns a device decides.
func DenyAccelerators(h Host, rules []edits.Rule) (denied []edits.Rule) {
	accelerators := gpu.AcceleratorMajors(h.Majors)
	for _, major := range slices.Sorted(maps.Keys(accelerators)) {
		denied = append(denied, edits.Rule{Type: "c", Major: major, Minor: edits.Any, Access: "rwm"})
	}
	for _, n := range h.Ordinary {
		denied = append(denied, edits.Rule{Allow: true, Type: "c", Major: n.Major, Minor: n.Minor, Access: "rwm"})
	}
	if slices.ContainsFunc(rules, func(r edits.Rule) bool { return r.Allow && devices.Total(r) }) {
		return denied // all devices were opened, and none on purpose
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

// DenyEachAccelerator is [DenyAccelerators] by rules that only deny, and need no order: where
// ordinary devices have the major of accelerators, all others are named one by one, up to
// maxMinor, the highest of DRM on the host, at least.
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

// namesSingle says that a rule is about one character device.
func namesSingle(r edits.Rule) bool {
	return r.Type == "c" && r.Major != edits.Any && r.Minor != edits.Any
}

// OpensAllOfMajor says whether a rule lets all devices of an accelerator's major be opened,
// or all devices. Runtimes take an empty list for that.
func OpensAllOfMajor(rules []edits.Rule, h Host) bool {
	accelerators := gpu.AcceleratorMajors(h.Majors)
	return len(rules) == 0 || slices.ContainsFunc(rules, func(r edits.Rule) bool {
		whole := devices.Total(r) || r.Type == "c" && r.Minor == edits.Any && (r.Major == edits.Any || accelerators[r.Major])
		return r.Allow && whole && (devices.Total(r) || strings.ContainsAny(r.Access, "rw"))
	})
}

// WithoutWholeMajors is the rule list of a running container without what opens all of an
// accelerator's major. Rules for single devices stay.
func WithoutWholeMajors(rules []edits.Rule, h Host) ([]edits.Rule, error) {
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	for _, r := range rules {
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, r.Spec())
		if namesSingle(r) {
			h.Ordinary = append(slices.Clip(h.Ordinary), Number{r.Major, r.Minor})
		}
	}
	e, _, err := Wall(spec, h, nil)
	return e.Rules, err
}
