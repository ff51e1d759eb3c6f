package edits

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// MemoryPolicy are the calls for NUMA memory policy. Engines' filters refuse them without
// CAP_SYS_NICE; they act on the caller's memory alone, and NCCL's and CUDA's host
// allocations fail without them. Calls of other names aren't found in a filter that
// package hook/bundle has read.
func MemoryPolicy() []string { return []string{"get_mempolicy", "mbind", "set_mempolicy"} }

// letThrough has the spec's filter allow the calls without a condition. A call that
// the filter refuses by name is taken out of that rule, for libraries make no filter
// of contradicting rules. Rules that end the process, or tell a supervisor, are
// somebody's wish for just this call, and stay; so does the call then.
func (e Edits) letThrough(spec *specs.Spec) {
	if len(e.Calls) == 0 || spec.Linux == nil || spec.Linux.Seccomp == nil {
		return
	}
	filter := *spec.Linux.Seccomp
	var rules []specs.LinuxSyscall
	missing := slices.DeleteFunc(slices.Clone(e.Calls), func(name string) bool {
		return slices.ContainsFunc(filter.Syscalls, func(r specs.LinuxSyscall) bool { return settlesCall(r, name) })
	})
	changed := missing
	for _, r := range filter.Syscalls {
		if r.Action == specs.ActErrno && slices.ContainsFunc(r.Names, func(name string) bool { return slices.Contains(changed, name) }) {
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool { return slices.Contains(changed, name) })
		}
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
	}
	if filter.DefaultAction != specs.ActAllow && len(missing) > 0 {
		rules = append(rules, specs.LinuxSyscall{Names: missing, Action: specs.ActAllow})
	}
	filter.Syscalls = rules
	spec.Linux.Seccomp = &filter
}

// settlesCall says that a rule settles the matter of a call: it allows it without a
// condition, or does something else with it than to refuse it.
func settlesCall(r specs.LinuxSyscall, name string) bool {
	if !slices.Contains(r.Names, name) {
		return false
	}
	return r.Action == specs.ActAllow && len(r.Args) == 0 || r.Action != specs.ActAllow && r.Action != specs.ActErrno
}
