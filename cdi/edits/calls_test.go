package edits

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestCalls(t *testing.T) {
	eperm := uint(1)
	let := func(names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: specs.ActAllow}
	}
	refuse := func(names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: specs.ActErrno, ErrnoRet: &eperm}
	}
	for _, tt := range []struct {
		name       string
		otherwise  specs.LinuxSeccompAction
		have, want []specs.LinuxSyscall
	}{
		{"not named", specs.ActErrno, []specs.LinuxSyscall{let("read")}, []specs.LinuxSyscall{let("read"), let("mbind", "set_mempolicy")}},
		{"allowed already", specs.ActErrno, []specs.LinuxSyscall{let("read", "mbind", "set_mempolicy")}, []specs.LinuxSyscall{let("read", "mbind", "set_mempolicy")}},
		{"one is", specs.ActErrno, []specs.LinuxSyscall{let("mbind")}, []specs.LinuxSyscall{let("mbind"), let("set_mempolicy")}},
		{"refused by name", specs.ActErrno, []specs.LinuxSyscall{refuse("bpf", "mbind"), refuse("set_mempolicy")}, []specs.LinuxSyscall{refuse("bpf"), let("mbind", "set_mempolicy")}},
		{"allowed where not refused", specs.ActAllow, []specs.LinuxSyscall{refuse("bpf", "mbind")}, []specs.LinuxSyscall{refuse("bpf")}},
		{
			"with a condition", specs.ActErrno,
			[]specs.LinuxSyscall{{Names: []string{"mbind"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Value: 1, Op: specs.OpEqualTo}}}},
			[]specs.LinuxSyscall{{Names: []string{"mbind"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Value: 1, Op: specs.OpEqualTo}}}, let("mbind", "set_mempolicy")},
		},
		{
			"a listener is notified", specs.ActErrno,
			[]specs.LinuxSyscall{{Names: []string{"mbind", "set_mempolicy"}, Action: specs.ActNotify}},
			[]specs.LinuxSyscall{{Names: []string{"mbind", "set_mempolicy"}, Action: specs.ActNotify}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{DefaultAction: tt.otherwise, Syscalls: tt.have}}}
			for _, times := range []string{"once", "twice"} {
				if err := (Edits{Calls: []string{"mbind", "set_mempolicy"}}).Apply(spec); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, spec.Linux.Seccomp.Syscalls); d != "" {
					t.Errorf("applied %s (-want +got):\n%s", times, d)
				}
			}
		})
	}
	without := &specs.Spec{Linux: &specs.Linux{}}
	if err := (Edits{Calls: []string{"mbind"}}).Apply(without); err != nil || without.Linux.Seccomp != nil {
		t.Errorf("a filter was made where there is none: %v", err)
	}
}

// TestRefuseCall: a filter that allowed a call refuses it afterwards, and other calls and deliberate rules stay.
func TestRefuseCall(t *testing.T) {
	eperm, enosys := uint(1), uint(38)
	rule := func(action specs.LinuxSeccompAction, names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: action}
	}
	refused := specs.LinuxSyscall{Names: []string{"fanotify_init"}, Action: specs.ActErrno, ErrnoRet: &eperm}
	other := specs.LinuxSyscall{Names: []string{"fanotify_init"}, Action: specs.ActErrno, ErrnoRet: &enosys}
	condition := rule(specs.ActAllow, "fanotify_init")
	condition.Args = []specs.LinuxSeccompArg{{Value: 1, Op: specs.OpEqualTo}}
	for _, tt := range []struct {
		name       string
		otherwise  specs.LinuxSeccompAction
		have, want []specs.LinuxSyscall
	}{
		{"not named", specs.ActErrno, []specs.LinuxSyscall{rule(specs.ActAllow, "read")}, []specs.LinuxSyscall{rule(specs.ActAllow, "read")}},
		{"allowed with others", specs.ActErrno, []specs.LinuxSyscall{rule(specs.ActAllow, "bpf", "fanotify_init", "mount")}, []specs.LinuxSyscall{rule(specs.ActAllow, "bpf", "mount")}},
		{"allowed alone", specs.ActErrno, []specs.LinuxSyscall{rule(specs.ActLog, "fanotify_init"), condition}, nil},
		{"allowed by default", specs.ActAllow, nil, []specs.LinuxSyscall{refused}},
		{"allowed by default and by name", specs.ActLog, []specs.LinuxSyscall{rule(specs.ActAllow, "fanotify_init")}, []specs.LinuxSyscall{refused}},
		{"refused already", specs.ActAllow, []specs.LinuxSyscall{other}, []specs.LinuxSyscall{other}},
		{"a process is asked", specs.ActErrno, []specs.LinuxSyscall{rule(specs.ActNotify, "fanotify_init")}, []specs.LinuxSyscall{rule(specs.ActNotify, "fanotify_init")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{DefaultAction: tt.otherwise, Syscalls: tt.have}}}
			for _, times := range []string{"once", "twice"} {
				RefuseCall(spec, FileSystemEvents)
				if d := cmp.Diff(tt.want, spec.Linux.Seccomp.Syscalls); d != "" {
					t.Errorf("applied %s (-want +got):\n%s", times, d)
				}
			}
		})
	}
	without := &specs.Spec{Linux: &specs.Linux{}}
	if RefuseCall(without, FileSystemEvents); without.Linux.Seccomp != nil {
		t.Error("a filter was made where there is none")
	}
}

// TestShm: only the engines' default size is changed.
func TestShm(t *testing.T) {
	for _, tt := range []struct {
		name  string
		mount specs.Mount
		want  []string
	}{
		{"docker", specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"nosuid", "size=67108864", "mode=1777"}}, []string{"nosuid", "mode=1777", "size=50%"}},
		{"containerd", specs.Mount{Destination: "/dev/shm/", Type: "tmpfs", Options: []string{"size=65536k"}}, []string{"size=50%"}},
		{"asked for", specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"size=1g"}}, []string{"size=1g"}},
		{"not limited", specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"nosuid"}}, []string{"nosuid"}},
		{"another's", specs.Mount{Destination: "/dev/shm", Type: "bind", Options: []string{"bind", "size=65536k"}}, []string{"bind", "size=65536k"}},
		{"elsewhere", specs.Mount{Destination: "/dev", Type: "tmpfs", Options: []string{"size=65536k"}}, []string{"size=65536k"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			given := append([]string(nil), tt.mount.Options...)
			spec := &specs.Spec{Mounts: []specs.Mount{{Destination: "/proc"}, tt.mount, {Destination: "/dev/shm/x"}}}
			for range 2 {
				if err := (Edits{Shm: "50%"}).Apply(spec); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(tt.want, spec.Mounts[1].Options); d != "" || len(spec.Mounts) != 3 {
				t.Errorf("options (-want +got):\n%s", d)
			}
			if d := cmp.Diff(given, tt.mount.Options); d != "" {
				t.Errorf("the template was changed (-want +got):\n%s", d)
			}
		})
	}
}

func TestMergeResources(t *testing.T) {
	got, err := Merge(Edits{Calls: []string{"mbind"}}, Edits{Calls: []string{"mbind", "get_mempolicy"}, Shm: "50%"}, Edits{Shm: "50%"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Edits{Calls: []string{"mbind", "get_mempolicy"}, Shm: "50%"}, got); d != "" {
		t.Errorf("merged (-want +got):\n%s", d)
	}
	for name, e := range map[string]Edits{
		"a call with a space": {Calls: []string{"mbind "}}, "an option besides": {Shm: "50%,exec"},
	} {
		if err := e.Validate(); err == nil {
			t.Errorf("%s: valid", name)
		}
	}
	if _, err := Merge(Edits{Shm: "1"}, Edits{Shm: "2"}); err == nil {
		t.Error("two sizes were merged")
	}
}

// TestRefuseExitTracing: a filter that allows ptrace allows it only under conditions afterwards; other calls, filters with
// conditions of their own, and containers with CAP_SYS_PTRACE stay as they are.
func TestRefuseExitTracing(t *testing.T) {
	allow := func(names ...string) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: specs.ActAllow}
	}
	traceMe := specs.LinuxSyscall{Names: []string{"ptrace"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Value: 0, Op: specs.OpEqualTo}}}
	refused := specs.LinuxSyscall{Names: []string{"ptrace"}, Action: specs.ActErrno}
	for _, tt := range []struct {
		name      string
		otherwise specs.LinuxSeccompAction
		caps      []string
		have      []specs.LinuxSyscall
		restricts bool
	}{
		{"allowed with others", specs.ActErrno, nil, []specs.LinuxSyscall{allow("read", "ptrace")}, true},
		{"allowed twice", specs.ActErrno, nil, []specs.LinuxSyscall{allow("ptrace"), traceMe, allow("read", "ptrace")}, true},
		{"allowed by default", specs.ActAllow, nil, nil, true},
		{"not allowed", specs.ActErrno, nil, []specs.LinuxSyscall{allow("read")}, false},
		{"refused", specs.ActAllow, nil, []specs.LinuxSyscall{refused}, false},
		{"allowed under a condition", specs.ActErrno, nil, []specs.LinuxSyscall{traceMe}, false},
		{"capable", specs.ActErrno, []string{"CAP_SYS_PTRACE"}, []specs.LinuxSyscall{allow("read", "ptrace")}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			given := &specs.LinuxSeccomp{DefaultAction: tt.otherwise, Syscalls: tt.have}
			spec := &specs.Spec{
				Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: tt.caps}},
				Linux:   &specs.Linux{Seccomp: given},
			}
			before := slices.Clone(tt.have)
			RefuseExitTracing(spec)
			once := slices.Clone(spec.Linux.Seccomp.Syscalls)
			if got := cmp.Diff(before, once) != ""; got != tt.restricts {
				t.Errorf("changed: %v; %+v", got, once)
			}
			for _, r := range once {
				if tt.restricts && slices.Contains(r.Names, "ptrace") && len(r.Args) == 0 {
					t.Errorf("%+v", r)
				}
			}
			if tt.restricts && slices.ContainsFunc(once, func(r specs.LinuxSyscall) bool { return cmp.Equal(r, traceMe) }) {
				t.Error("a rule without effect beside the one that was replaced allows more than the new ones")
			}
			RefuseExitTracing(spec)
			if d := cmp.Diff(once, spec.Linux.Seccomp.Syscalls); d != "" {
				t.Errorf("applied twice (-once +twice):\n%s", d)
			}
			if d := cmp.Diff(before, given.Syscalls); d != "" {
				t.Errorf("the given filter was changed (-want +got):\n%s", d)
			}
		})
	}
}
