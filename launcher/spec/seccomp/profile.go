package seccomp

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/callrules"
)

// profile is the format of docker's --security-opt seccomp=FILE, a superset of the OCI's
// (https://docs.docker.com/engine/security/seccomp).
type profile struct {
	DefaultAction   specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet *uint                    `json:"defaultErrnoRet"`
	Architectures   []specs.Arch             `json:"architectures"`
	ArchMap         []archMap                `json:"archMap"`
	Flags           []specs.LinuxSeccompFlag `json:"flags"`
	ListenerPath    string                   `json:"listenerPath"`
	Syscalls        []profileRule            `json:"syscalls"`
}

type archMap struct {
	Architecture     specs.Arch   `json:"architecture"`
	SubArchitectures []specs.Arch `json:"subArchitectures"`
}

type profileRule struct {
	Name     string                   `json:"name"`
	Names    []string                 `json:"names"`
	Action   specs.LinuxSeccompAction `json:"action"`
	ErrnoRet *uint                    `json:"errnoRet"`
	Args     []specs.LinuxSeccompArg  `json:"args"`
	Includes profileCase              `json:"includes"`
	Excludes profileCase              `json:"excludes"`
}

// profileCase is a condition under which a rule applies, or doesn't.
type profileCase struct {
	Caps      []string `json:"caps"`
	Arches    []string `json:"arches"`
	MinKernel string   `json:"minKernel"`
}

// maxNames bounds the names of all rules of a profile; docker's default has about 450. A runtime needs
// more than 20 s for tens of thousands of rules, during which the launch handles no signal.
const maxNames = 4096

// ParseProfile parses a filter in docker's format, for a container with these capabilities on a kernel
// of this release. The calls of neverAllowed are refused in any case.
func ParseProfile(data []byte, caps []string, release string) (*Filter, error) {
	var p profile
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("not a profile: %w", err)
	}
	if p.ListenerPath != "" {
		return nil, errors.New("listenerPath: no process listens for a task")
	}
	if err := checkAction(p.DefaultAction); err != nil {
		return nil, fmt.Errorf("defaultAction: %w", err)
	}
	calls := &specs.LinuxSeccomp{
		DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrnoRet,
		Architectures: p.architectures(), Flags: p.Flags,
	}
	count := 0
	for i, r := range p.Syscalls {
		if count += max(len(r.Names), 1) * max(len(r.Args), 1); count > maxNames {
			return nil, fmt.Errorf("its rules have more than %d names and arguments", maxNames)
		}
		if slices.ContainsFunc(r.Args, func(a specs.LinuxSeccompArg) bool { return a.Index > 5 }) {
			return nil, fmt.Errorf("syscalls[%d]: a call has at most six arguments, with the indexes 0 to 5", i)
		}
		if err := checkAction(r.Action); err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
		names, err := r.effectiveNames(caps, release)
		if err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
		if len(r.Args) > 0 && callrules.IsPermitted(r.Action) {
			for _, held := range restrictedCalls(caps) {
				if slices.Contains(names, held) {
					return nil, fmt.Errorf("syscalls[%d]: %s is allowed with some arguments only, and berth has conditions of its own for it: allow it without args", i, held)
				}
			}
		}
		if len(names) > 0 {
			calls.Syscalls = append(calls.Syscalls, specs.LinuxSyscall{Names: names, Action: r.Action, ErrnoRet: r.ErrnoRet, Args: r.Args})
		}
	}
	// libseccomp allows socketcall together with a rule that allows setsockopt, and runtimes drop rules
	// with the default action. So the error must differ from the default one.
	errno := uint(unix.EPERM)
	if p.DefaultAction == specs.ActErrno && (p.DefaultErrnoRet == nil || *p.DefaultErrnoRet == errno) {
		errno = uint(unix.ENOSYS)
	}
	calls.Syscalls = append(calls.Syscalls, specs.LinuxSyscall{Names: strings.Fields(neverAllowed), Action: specs.ActErrno, ErrnoRet: &errno})
	return &Filter{Calls: restrictArguments(calls, caps, namespaceRequests(caps))}, nil
}

// checkAction returns an error for unknown actions, and for those that need a process that answers
// (notify, trace).
func checkAction(a specs.LinuxSeccompAction) error {
	switch a {
	case specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActLog, specs.ActTrap:
		return nil
	case "":
		return errors.New("no action")
	}
	return fmt.Errorf("action %q is none of SCMP_ACT_ALLOW, _ERRNO, _KILL, _KILL_PROCESS, _KILL_THREAD, _LOG, _TRAP", a)
}

// architectures returns the system call tables that the profile names for this processor, or all tables
// of the processor if it names none.
func (p profile) architectures() []specs.Arch {
	if len(p.Architectures) > 0 {
		return p.Architectures
	}
	for _, m := range p.ArchMap {
		if own := allArchitectures(); len(own) > 0 && m.Architecture == own[0] {
			return append([]specs.Arch{m.Architecture}, m.SubArchitectures...)
		}
	}
	return allArchitectures()
}

// effectiveNames returns the calls of a rule without those of neverAllowed, or none if the rule's
// conditions aren't met.
func (r profileRule) effectiveNames(caps []string, release string) ([]string, error) {
	names := r.Names
	if r.Name != "" {
		if len(names) > 0 {
			return nil, errors.New("both name and names")
		}
		names = []string{r.Name}
	}
	for _, m := range []string{r.Includes.MinKernel, r.Excludes.MinKernel} {
		if _, _, ok := parseKernelVersion(m); m != "" && !ok {
			return nil, fmt.Errorf("minKernel %q is not a version", m)
		}
	}
	if !r.Includes.allTrue(caps, release) || r.Excludes.anyTrue(caps, release) {
		return nil, nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(strings.Fields(neverAllowed), name) }), nil
}

// allTrue reports whether all conditions are met: every capability, one of the processors, the kernel.
func (p profileCase) allTrue(caps []string, release string) bool {
	result := true
	if len(p.Arches) > 0 {
		result = slices.Contains(p.Arches, runtime.GOARCH)
	}
	for _, name := range p.Caps {
		result = result && slices.Contains(caps, name)
	}
	if p.MinKernel != "" {
		result = result && !isOlder(release, p.MinKernel)
	}
	return result
}

// anyTrue reports whether a capability, a processor or the kernel is as the case wants it.
func (p profileCase) anyTrue(caps []string, release string) bool {
	return slices.Contains(p.Arches, runtime.GOARCH) ||
		slices.ContainsFunc(p.Caps, func(name string) bool { return slices.Contains(caps, name) }) ||
		p.MinKernel != "" && !isOlder(release, p.MinKernel)
}

func isOlder(release, than string) bool {
	a, b, _ := parseKernelVersion(release)
	x, y, _ := parseKernelVersion(than)
	return a < x || a == x && b < y
}

func parseKernelVersion(s string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(s, ".")
	second := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, err1 == nil && err2 == nil
}
