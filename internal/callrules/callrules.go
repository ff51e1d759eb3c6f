// Package callrules restricts system calls in a container's seccomp filter by their arguments, with rules
// that libseccomp applies as they are meant. It decides nothing about containers.
package callrules

import (
	"reflect"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// RefuseExitTracing makes a filter that allows ptrace refuse it with PTRACE_O_TRACEEXIT. A killed process
// that is traced so stops before it ends, and waits for its tracer. Two that trace each other wait for
// ever: nothing ends them, and their lease lasts until the machine is restarted.
func RefuseExitTracing(filter *specs.LinuxSeccomp) {
	const request, options, exit = 0, 3, unix.PTRACE_O_TRACEEXIT
	const bits = 16 // requests are smaller
	// PTRACE_OLDSETOPTIONS (21) is missing in x/sys/unix for some processors.
	requests := []uint32{unix.PTRACE_SEIZE, unix.PTRACE_SETOPTIONS, 21}
	harmless := append(ArgumentIn(request, RangesWithout(requests, 0, bits)), ArgumentIn(options, []MaskedRange{{exit, 0}})...)
	var harmful []Conditions
	for _, c := range ArgumentIn(request, SingleValues(requests...)) {
		harmful = append(harmful, append(c, ArgumentIn(options, []MaskedRange{{exit, exit}})[0]...))
	}
	RestrictCall(filter, "ptrace", unix.EPERM, harmless, harmful)
}

// Conditions of a rule, all of which must hold.
type Conditions []specs.LinuxSeccompArg

// RestrictCall makes a filter that allows a call refuse it under the conditions of denied. A rule that
// allows the call unconditionally is replaced by rules that allow it under the conditions of permitted,
// because libseccomp applies no other rule beside an unconditional one. A call that meets neither is
// refused by the default action. Rules that refuse the call stay. A filter that allows the call only under
// conditions of its own is not changed. RestrictCall is idempotent.
func RestrictCall(calls *specs.LinuxSeccomp, name string, errno unix.Errno, permitted, denied []Conditions) {
	add := func(action specs.LinuxSeccompAction, errno *uint, all []Conditions) {
		for _, c := range all {
			rule := specs.LinuxSyscall{Names: []string{name}, Action: action, ErrnoRet: errno, Args: c}
			if !slices.ContainsFunc(calls.Syscalls, func(s specs.LinuxSyscall) bool { return reflect.DeepEqual(s, rule) }) {
				calls.Syscalls = append(calls.Syscalls, rule)
			}
		}
	}
	isUnconditional := func(s specs.LinuxSyscall) bool {
		return len(s.Args) == 0 && slices.Contains(s.Names, name) && IsPermitted(s.Action)
	}
	if slices.ContainsFunc(calls.Syscalls, isUnconditional) {
		calls.Syscalls = withoutConditional(calls.Syscalls, name)
	}
	decided := false
	for i, s := range calls.Syscalls {
		if len(s.Args) > 0 || !slices.Contains(s.Names, name) {
			continue
		}
		if !IsPermitted(s.Action) {
			return
		}
		calls.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return n == name })
		if !IsPermitted(calls.DefaultAction) && !decided {
			add(s.Action, nil, permitted)
		}
		decided = true
	}
	calls.Syscalls = slices.DeleteFunc(calls.Syscalls, func(s specs.LinuxSyscall) bool { return len(s.Names) == 0 })
	if decided || IsPermitted(calls.DefaultAction) {
		number := uint(errno)
		add(specs.ActErrno, &number, denied)
	}
}

// withoutConditional returns the rules without those that allow a call under conditions. Beside a rule that
// allows it unconditionally they have no effect.
func withoutConditional(rules []specs.LinuxSyscall, name string) (rest []specs.LinuxSyscall) {
	for _, r := range rules {
		if len(r.Args) > 0 && IsPermitted(r.Action) {
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return n == name })
		}
		if len(r.Names) > 0 {
			rest = append(rest, r)
		}
	}
	return rest
}

// IsPermitted reports whether an action executes the call.
func IsPermitted(a specs.LinuxSeccompAction) bool { return a == specs.ActAllow || a == specs.ActLog }

// ArgumentIn returns the conditions that an argument is in one of the ranges.
func ArgumentIn(argument uint, ranges []MaskedRange) (all []Conditions) {
	for _, r := range ranges {
		all = append(all, Conditions{{Index: argument, Value: r.Mask, ValueTwo: r.Value, Op: specs.OpMaskedEqual}})
	}
	return all
}

// SingleValues returns the ranges of single values.
func SingleValues(values ...uint32) (all []MaskedRange) {
	for _, v := range values {
		all = append(all, MaskedRange{0xffffffff, uint64(v)})
	}
	return all
}

// MaskedRange is the set of numbers n with n&Mask == Value.
type MaskedRange struct{ Mask, Value uint64 }

// RangesWithout returns ranges that cover all numbers that begin with the same bits as first, except the
// excluded ones. bits is the number of bits after those of first. The masks cover only the lower half of
// the argument, as the kernel reads it: bits of the upper half must not disguise a number.
func RangesWithout(excluded []uint32, first uint32, bits int) []MaskedRange {
	if len(excluded) == 0 {
		return []MaskedRange{{0xffffffff &^ (1<<bits - 1), uint64(first)}}
	}
	if bits == 0 {
		return nil
	}
	bit := uint32(1) << (bits - 1)
	var zero, one []uint32
	for _, n := range excluded {
		if n&bit == 0 {
			zero = append(zero, n)
		} else {
			one = append(one, n)
		}
	}
	return append(RangesWithout(zero, first, bits-1), RangesWithout(one, first|bit, bits-1)...)
}
