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

// list is what rules allow, without an order: all, or one by one. It is what
// cgroup v1 and systemd can hold.
type list struct {
	all     bool
	entries []entryOf
}

type entryOf struct {
	device
	access
}

// device is what a rule speaks of.
type device struct {
	kind         string
	major, minor int64
}

// isWithin says that the other is the same, or a wildcard that has it.
func (d device) isWithin(o device) bool {
	return d.kind == o.kind && (o.major == edits.Any || o.major == d.major) && (o.minor == edits.Any || o.minor == d.minor)
}

func (d device) overlaps(o device) bool {
	meet := func(a, b int64) bool { return a == edits.Any || b == edits.Any || a == b }
	return d.kind == o.kind && meet(d.major, o.major) && meet(d.minor, o.minor)
}

func (e entryOf) String() string {
	return v1Entry(edits.Rule{Type: e.kind, Major: e.major, Minor: e.minor, Access: e.access.String()})
}

// reduceRules works the order out of the rules. A denial of a part of what is allowed as
// a whole can't be said without order: that is an error that names it.
func reduceRules(rules []edits.Rule) (list, error) {
	if err := checkAll(rules); err != nil {
		return list{}, err
	}
	var l list
	for _, r := range rules {
		if Total(r) {
			l = list{all: r.Allow}
			continue
		}
		if err := l.applyRule(r); err != nil {
			return list{}, fmt.Errorf("%s: %w", Text(r), err)
		}
	}
	return l, nil
}

func (l *list) applyRule(r edits.Rule) error {
	e := entryOf{device{r.Type, r.Major, r.Minor}, accessBits(r.Access)}
	switch {
	case e.access == 0, l.all && r.Allow:
		return nil
	case l.all:
		return fmt.Errorf("it makes a hole in an allowance of all devices")
	case r.Allow:
		l.addAllowance(e)
		return nil
	}
	return l.addDenial(e)
}

func (l *list) addAllowance(e entryOf) {
	for i := range l.entries {
		if l.entries[i].device == e.device {
			l.entries[i].access |= e.access
			return
		}
	}
	l.entries = append(l.entries, e)
}

func (l *list) addDenial(e entryOf) error {
	var rest []entryOf
	for _, have := range l.entries {
		if have.access&e.access != 0 && have.overlaps(e.device) {
			if !have.isWithin(e.device) {
				return fmt.Errorf("it makes a hole in the allowance %s", have)
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

// accessOf is what is allowed for just this device, or wildcard.
func (l list) accessOf(d device) access {
	for _, e := range l.entries {
		if e.device == d {
			return e.access
		}
	}
	return 0
}

// subtract lists what l has and the other lacks.
func (l list) subtract(o list) (rest []entryOf) {
	for _, e := range l.entries {
		if a := e.access &^ o.accessOf(e.device); a != 0 {
			rest = append(rest, entryOf{e.device, a})
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
