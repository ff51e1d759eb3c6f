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
)

// profile is a file of Docker's --security-opt seccomp=FILE. The OCI's own form is
// part of it.
type profile struct {
	DefaultAction    specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet  *uint                    `json:"defaultErrnoRet"`
	Architectures    []specs.Arch             `json:"architectures"`
	ArchMap          []archMap                `json:"archMap"`
	Flags            []specs.LinuxSeccompFlag `json:"flags"`
	ListenerPath     string                   `json:"listenerPath"`
	ListenerMetadata string                   `json:"listenerMetadata"`
	Syscalls         []profileRule            `json:"syscalls"`
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

// profileCase is when a rule counts, or doesn't.
type profileCase struct {
	Caps      []string `json:"caps"`
	Arches    []string `json:"arches"`
	MinKernel string   `json:"minKernel"`
}

// ParseProfile reads a filter in Docker's form, for a task with these capabilities
// on a kernel of this release. Calls that would take down the walls between tasks
// stay refused whatever the profile says of them.
func ParseProfile(data []byte, caps []string, release string) (*Filter, error) {
	var p profile
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("not a profile: %w", err)
	}
	if p.ListenerPath != "" {
		return nil, errors.New("listenerPath: a task has nobody who listens")
	}
	if err := knownAction(p.DefaultAction); err != nil {
		return nil, fmt.Errorf("defaultAction: %w", err)
	}
	eperm := uint(unix.EPERM)
	calls := &specs.LinuxSeccomp{
		DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrnoRet,
		Architectures: p.architectures(), Flags: p.Flags,
	}
	for i, r := range p.Syscalls {
		if err := knownAction(r.Action); err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
		names, err := r.counts(caps, release)
		if err != nil {
			return nil, fmt.Errorf("syscalls[%d]: %w", i, err)
		}
		if len(names) > 0 {
			calls.Syscalls = append(calls.Syscalls, specs.LinuxSyscall{Names: names, Action: r.Action, ErrnoRet: r.ErrnoRet, Args: r.Args})
		}
	}
	calls.Syscalls = append(calls.Syscalls, specs.LinuxSyscall{Names: strings.Fields(held), Action: specs.ActErrno, ErrnoRet: &eperm})
	return &Filter{Calls: calls}, nil
}

// knownAction: what asks another process needs one that answers.
func knownAction(a specs.LinuxSeccompAction) error {
	switch a {
	case specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActLog, specs.ActTrap:
		return nil
	case "":
		return errors.New("no action")
	}
	return fmt.Errorf("action %q is none of SCMP_ACT_ALLOW, _ERRNO, _KILL, _KILL_PROCESS, _KILL_THREAD, _LOG, _TRAP", a)
}

// architectures are those that the profile names for this processor; if it names
// none, all tables are filtered.
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

// counts returns the calls that a rule is about, less those that are held; none if
// the rule doesn't count here.
func (r profileRule) counts(caps []string, release string) ([]string, error) {
	names := r.Names
	if r.Name != "" {
		if len(names) > 0 {
			return nil, errors.New("both name and names")
		}
		names = []string{r.Name}
	}
	for _, m := range []string{r.Includes.MinKernel, r.Excludes.MinKernel} {
		if _, _, ok := kernelVersion(m); m != "" && !ok {
			return nil, fmt.Errorf("minKernel %q is not a version", m)
		}
	}
	if !r.Includes.holds(caps, release) || r.Excludes.any(caps, release) {
		return nil, nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(strings.Fields(held), name) }), nil
}

// holds says whether all that a case names is so: every capability, one of the
// processors, the kernel.
func (p profileCase) holds(caps []string, release string) bool {
	result := true
	if len(p.Arches) > 0 {
		result = slices.Contains(p.Arches, runtime.GOARCH)
	}
	for _, name := range p.Caps {
		result = result && slices.Contains(caps, name)
	}
	if p.MinKernel != "" {
		result = result && !older(release, p.MinKernel)
	}
	return result
}

// any says whether one thing that a case names is so.
func (p profileCase) any(caps []string, release string) bool {
	return slices.Contains(p.Arches, runtime.GOARCH) ||
		slices.ContainsFunc(p.Caps, func(name string) bool { return slices.Contains(caps, name) }) ||
		p.MinKernel != "" && !older(release, p.MinKernel)
}

func older(release, than string) bool {
	a, b, _ := kernelVersion(release)
	x, y, _ := kernelVersion(than)
	return a < x || a == x && b < y
}

func kernelVersion(s string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(s, ".")
	second := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, err1 == nil && err2 == nil
}
