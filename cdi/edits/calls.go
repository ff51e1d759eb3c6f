package edits

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/callrules"
)

// EditedCalls are the system calls whose rules in a seccomp filter berth changes. Calls of other names aren't found
// in a filter that package hook/bundle has read.
func EditedCalls() []string { return append(MemoryPolicy(), FileSystemEvents, "ptrace") }

// FileSystemEvents is the call by which CAP_SYS_ADMIN gets events of a whole file system. Each brings an open
// descriptor of the object concerned: those of cgroupfs lead out of the container, to the host's root.
const FileSystemEvents = "fanotify_init"

// RefuseCall makes the spec's seccomp filter refuse a call that it allows. A rule with an action other than allow or
// log stays. Nothing happens without a filter.
func RefuseCall(spec *specs.Spec, name string) {
	if spec.Linux == nil || spec.Linux.Seccomp == nil {
		return
	}
	filter := *spec.Linux.Seccomp
	var rules []specs.LinuxSyscall
	refused := false
	for _, r := range filter.Syscalls {
		if callrules.IsPermitted(r.Action) {
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return n == name })
		}
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
		refused = refused || len(r.Args) == 0 && slices.Contains(r.Names, name)
	}
	if callrules.IsPermitted(filter.DefaultAction) && !refused {
		eperm := uint(unix.EPERM)
		rules = append(rules, specs.LinuxSyscall{Names: []string{name}, Action: specs.ActErrno, ErrnoRet: &eperm})
	}
	filter.Syscalls = rules
	spec.Linux.Seccomp = &filter
}

// RefuseExitTracing makes the spec's seccomp filter refuse ptrace with PTRACE_O_TRACEEXIT, by which processes
// outlive SIGKILL and hold their lease ([callrules.RefuseExitTracing]). Nothing happens without a filter, or if
// the container has CAP_SYS_PTRACE. RefuseExitTracing is idempotent.
func RefuseExitTracing(spec *specs.Spec) {
	if spec.Linux == nil || spec.Linux.Seccomp == nil || HasCapability(spec, "CAP_SYS_PTRACE") {
		return
	}
	filter := *spec.Linux.Seccomp
	filter.Syscalls = slices.Clone(filter.Syscalls)
	callrules.RefuseExitTracing(&filter)
	spec.Linux.Seccomp = &filter
}

// HasCapability reports whether the container's bounding set has the capability.
func HasCapability(spec *specs.Spec, name string) bool {
	return spec.Process != nil && spec.Process.Capabilities != nil &&
		slices.ContainsFunc(spec.Process.Capabilities.Bounding, func(has string) bool { return strings.EqualFold(has, name) })
}

// MemoryPolicy are the calls for NUMA memory policy. Engines' filters refuse them without
// CAP_SYS_NICE; they act on the caller's memory alone, and NCCL's and CUDA's host
// allocations fail without them.
func MemoryPolicy() []string { return []string{"get_mempolicy", "mbind", "set_mempolicy"} }

// allowCalls makes the spec's seccomp filter allow the calls unconditionally. A call is removed from
// rules that return an error for it, because libseccomp rejects contradicting rules. A rule with
// another action (kill, trace, notify) is deliberate: it stays, and the call isn't allowed.
func (e Edits) allowCalls(spec *specs.Spec) {
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

// settlesCall reports whether a call needs no new rule: r allows it unconditionally, or has an
// action other than allow and errno for it.
func settlesCall(r specs.LinuxSyscall, name string) bool {
	if !slices.Contains(r.Names, name) {
		return false
	}
	return r.Action == specs.ActAllow && len(r.Args) == 0 || r.Action != specs.ActAllow && r.Action != specs.ActErrno
}
