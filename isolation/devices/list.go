package devices

import (
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
)

// access is a set of the kernel's BPF_DEVCG_ACC_ bits.
type access uint8

const (
	mknod access = 1 << iota
	read
	write
	everything = mknod | read | write
)

func accessBits(letters string) (a access) {
	for _, c := range letters {
		switch c {
		case 'r':
			a |= read
		case 'w':
			a |= write
		case 'm':
			a |= mknod
		}
	}
	return a
}

func (a access) String() string {
	var s strings.Builder
	for _, l := range []struct {
		bit    access
		letter byte
	}{{read, 'r'}, {write, 'w'}, {mknod, 'm'}} {
		if a&l.bit != 0 {
			s.WriteByte(l.letter)
		}
	}
	return s.String()
}

// list is the result of evaluating rules: everything is allowed, or the entries are. It has no
// order, so cgroup v1 and systemd can hold it.
type list struct {
	all     bool
	entries []entry
}

type entry struct {
	device
	access
}

// device is the device, or the wildcard, that a rule matches.
type device struct {
	kind         string
	major, minor int64
}

// isWithin reports whether o is the same device, or a wildcard that contains d.
func (d device) isWithin(o device) bool {
	return d.kind == o.kind && (o.major == edits.Any || o.major == d.major) && (o.minor == edits.Any || o.minor == d.minor)
}

func (d device) overlaps(o device) bool {
	meet := func(a, b int64) bool { return a == edits.Any || b == edits.Any || a == b }
	return d.kind == o.kind && meet(d.major, o.major) && meet(d.minor, o.minor)
}

func (e entry) String() string {
	return Entry(edits.Rule{Type: e.kind, Major: e.major, Minor: e.minor, Access: e.access.String()})
}

// reduceRules evaluates the rules in their order. A rule that denies part of a wildcard can't be
// expressed without order; the error names it.
func reduceRules(rules []edits.Rule) (list, error) {
	if err := checkAll(rules); err != nil {
		return list{}, err
	}
	var l list
	for _, r := range rules {
		if MatchesAll(r) {
			l = list{all: r.Allow}
			continue
		}
		if err := l.applyRule(r); err != nil {
			return list{}, fmt.Errorf("%s: %w", Format(r), err)
		}
	}
	return l, nil
}

func (l *list) applyRule(r edits.Rule) error {
	e := entry{device{r.Type, r.Major, r.Minor}, accessBits(r.Access)}
	switch {
	case e.access == 0, l.all && r.Allow:
		return nil
	case l.all:
		return fmt.Errorf("it denies a part of \"allow all\"")
	case r.Allow:
		l.addAllowance(e)
		return nil
	}
	return l.addDenial(e)
}

func (l *list) addAllowance(e entry) {
	for i := range l.entries {
		if l.entries[i].device == e.device {
			l.entries[i].access |= e.access
			return
		}
	}
	l.entries = append(l.entries, e)
}

func (l *list) addDenial(e entry) error {
	var rest []entry
	for _, have := range l.entries {
		if have.access&e.access != 0 && have.overlaps(e.device) {
			if !have.isWithin(e.device) {
				return fmt.Errorf("it denies a part of the rule allow %s", have)
			}
			have.access &^= e.access
		}
		if have.access != 0 {
			rest = append(rest, have)
		}
	}
	l.entries = rest
	return nil
}

// accessOf returns the access that the entry for exactly this device or wildcard allows.
func (l list) accessOf(d device) access {
	for _, e := range l.entries {
		if e.device == d {
			return e.access
		}
	}
	return 0
}

// subtract lists what l has and the other lacks.
func (l list) subtract(o list) (rest []entry) {
	for _, e := range l.entries {
		if a := e.access &^ o.accessOf(e.device); a != 0 {
			rest = append(rest, entry{e.device, a})
		}
	}
	return rest
}

// findDifference names one thing in which the lists differ, or is "".
func (l list) findDifference(want list) string {
	if l.all != want.all {
		return "all devices"
	}
	for _, e := range append(want.subtract(l), l.subtract(want)...) {
		return e.String()
	}
	return ""
}
