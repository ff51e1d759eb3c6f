package seccomp

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// every are the capabilities that bring calls.
func every() []string {
	return []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_SYS_NICE", "CAP_SYSLOG", "CAP_PERFMON"}
}

// verdict is what a filter does with a call that has no conditions.
func verdict(f *Filter, name string) specs.LinuxSeccompAction {
	for _, s := range f.Calls.Syscalls {
		if slices.Contains(s.Names, name) && len(s.Args) == 0 {
			return s.Action
		}
	}
	return f.Calls.DefaultAction
}

// No capability and no file lets a container make the calls that lift its device rules.
func TestRestrictedCalls(t *testing.T) {
	every := every()
	const open = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["bpf", "read", "kexec_load"], "action": "SCMP_ACT_ALLOW"}, {"name": "bpf", "action": "SCMP_ACT_LOG"}]}`
	parsed, err := ParseProfile([]byte(open), every, "6.1")
	if err != nil {
		t.Fatal(err)
	}
	for kind, f := range map[string]*Filter{"of all capabilities": Default(every), "unconfined": Unconfined(nil), "of a file": parsed} {
		for _, name := range []string{
			"bpf", "fanotify_init", "open_by_handle_at", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "iopl", "ioperm",
		} {
			if got := verdict(f, name); got != specs.ActErrno {
				t.Errorf("filter %s: %s: %s", kind, name, got)
			}
		}
		if got := verdict(f, "mount"); got != specs.ActAllow {
			t.Errorf("filter %s: mount: %s", kind, got)
		}
	}
}

func TestParseProfile(t *testing.T) {
	caps := []string{"CAP_SYS_CHROOT"}
	rule := func(more string) string {
		return `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["chroot"], "action": "SCMP_ACT_ALLOW"` + more + `}]}`
	}
	many := func(n int) string {
		return rule("}" + strings.Repeat(`, {"name": "x", "action": "SCMP_ACT_ALLOW"}`, n-2) + `, {"name": "x", "action": "SCMP_ACT_ALLOW"`)
	}
	for _, tt := range []struct {
		name, text string
		allows     bool
		fails      string
	}{
		{name: "plain", text: rule(""), allows: true},
		{name: "with the capability", text: rule(`, "includes": {"caps": ["CAP_SYS_CHROOT"]}`), allows: true},
		{name: "with another", text: rule(`, "includes": {"caps": ["CAP_SYS_ADMIN"]}`)},
		{name: "without the capability", text: rule(`, "excludes": {"caps": ["CAP_SYS_CHROOT"]}`)},
		{name: "without another", text: rule(`, "excludes": {"caps": ["CAP_SYS_ADMIN"]}`), allows: true},
		{name: "kernel that is old enough", text: rule(`, "includes": {"minKernel": "4.8"}`), allows: true},
		{name: "kernel that is too old", text: rule(`, "includes": {"minKernel": "6.2"}`)},
		{name: "of other processors", text: rule(`, "includes": {"arches": ["s390x"]}`)},
		{name: "of none of them", text: rule(`, "excludes": {"arches": ["amd64", "arm64"]}`)},
		{name: "many rules", text: many(4096), allows: true},
		{name: "too many rules", text: many(4097), fails: "its rules have more than 4096 names"},
		{name: "too many names", text: rule(`, "errnoRet": 1}, {"action": "SCMP_ACT_ERRNO", "names": ["x"` + strings.Repeat(`, "x"`, 4095) + `]`), fails: "more than 4096 names"},
		{name: "no JSON", text: "{", fails: "not a profile"},
		{name: "nothing by default", text: "{}", fails: "defaultAction: no action"},
		{name: "a listener", text: `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}`, fails: "listenerPath"},
		{name: "asks another", text: `{"defaultAction": "SCMP_ACT_NOTIFY"}`, fails: `action "SCMP_ACT_NOTIFY" is none of`},
		{name: "rule without action", text: `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"name": "x"}]}`, fails: "syscalls[0]: no action"},
		{name: "no version", text: rule(`, "includes": {"minKernel": "new"}`), fails: `minKernel "new"`},
		{name: "name and names", text: rule(`, "name": "x"`), fails: "both name and names"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := ParseProfile([]byte(tt.text), caps, "6.1.0-33-amd64")
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%v, want %q", err, tt.fails)
				}
				return
			}
			if err != nil || (verdict(f, "chroot") == specs.ActAllow) != tt.allows {
				t.Errorf("%v, chroot: %s", err, verdict(f, "chroot"))
			}
		})
	}
}

func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProfile(data, nil, "6.1")
		if err != nil {
			return
		}
		for _, name := range strings.Fields(neverAllowed) {
			if verdict(p, name) != specs.ActErrno {
				t.Errorf("%s allows %s", data, name)
			}
		}
	})
}

// A capability brings its calls, which are not refused at the same time.
func TestLiftedCalls(t *testing.T) {
	for _, name := range every() {
		p := defaultCalls([]string{name})
		for _, call := range strings.Fields(callsOfCapability(name)) {
			actions := []specs.LinuxSeccompAction{}
			for _, s := range p.Syscalls {
				if slices.Contains(s.Names, call) {
					actions = append(actions, s.Action)
				}
			}
			if !slices.Equal(actions, []specs.LinuxSeccompAction{specs.ActAllow}) {
				t.Errorf("%s: %s: %v", name, call, actions)
			}
		}
	}
}

func TestSeccomp(t *testing.T) {
	p := defaultCalls([]string{"CAP_CHOWN", "CAP_SYS_CHROOT"})
	actions := map[string][]specs.LinuxSeccompAction{}
	for _, s := range p.Syscalls {
		for _, name := range s.Names {
			actions[name] = append(actions[name], s.Action)
		}
	}
	for name, a := range actions {
		if len(slices.Compact(slices.Clone(a))) != 1 {
			t.Errorf("%s is both allowed and refused: %v", name, a)
		}
	}
	for _, name := range []string{"mbind", "set_mempolicy", "get_mempolicy", "process_vm_readv", "chroot", "read"} {
		if !slices.Equal(actions[name], []specs.LinuxSeccompAction{specs.ActAllow}) {
			t.Errorf("%s: %v, want it allowed", name, actions[name])
		}
	}
	for _, name := range []string{"mount", "umount2", "bpf", "keyctl", "setns", "unshare", "init_module", "perf_event_open", "open_by_handle_at", "clone3", "userfaultfd"} {
		if !slices.Equal(actions[name], []specs.LinuxSeccompAction{specs.ActErrno}) {
			t.Errorf("%s: %v, want it refused", name, actions[name])
		}
	}
	if p.DefaultAction != specs.ActErrno {
		t.Errorf("what isn't named is %s", p.DefaultAction)
	}
	if slices.Contains(strings.Fields(allowed), "io_uring_setup") {
		t.Error("io_uring goes around the filter")
	}
}
