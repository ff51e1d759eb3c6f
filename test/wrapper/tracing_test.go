package wrapper

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/launcher/spec/seccomp"
)

// engineFilter returns a filter as engines have it: a call that isn't named fails with EPERM, and ptrace is allowed by
// name, in a rule with many other calls or in one of its own.
func engineFilter(ownRule bool) *specs.LinuxSeccomp {
	filter := seccomp.Default([]string{"CAP_SYS_PTRACE"}).Calls
	eperm := uint(1)
	filter.DefaultErrnoRet = &eperm
	filter.Architectures = []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
	if ownRule {
		filter.Syscalls[0].Names = slices.DeleteFunc(filter.Syscalls[0].Names, func(name string) bool { return name == "ptrace" })
		filter.Syscalls = append(filter.Syscalls, specs.LinuxSyscall{Names: []string{"process_vm_readv", "process_vm_writev", "ptrace"}, Action: specs.ActAllow})
	}
	return filter
}

// TestExitTracing: no process of a container with a lease traces another to its end (PTRACE_O_TRACEEXIT), by which two
// would outlive SIGKILL and keep the lease. Other tracing works. Containers without a lease, with CAP_SYS_PTRACE or
// without a filter aren't restricted.
func TestExitTracing(t *testing.T) {
	program := filepath.Join(dir, "trace")
	if err := command("cc -static -O1 -o " + program + " testdata/trace.c"); err != nil {
		t.Fatal(err)
	}
	const others = "seize: done\ninterrupt: done\noptions to the end: %\noptions: done\ncontinue: done\n"
	const tried = "seize to the end: %\nseize to the end, hidden: %\n" + others
	refused := strings.ReplaceAll(tried, "%", "Operation not permitted")
	// A process that is traced already can't be seized again.
	allowed := "seize to the end: done\nseize to the end, hidden: Operation not permitted\n" +
		strings.NewReplacer("seize: done", "seize: Operation not permitted", "%", "done").Replace(others)
	for _, tt := range []struct {
		name, request, want string
		filter              *specs.LinuxSeccomp
		capable             bool
	}{
		{"of many calls", "1", refused, engineFilter(false), false},
		{"own rule", "1", refused, engineFilter(true), false},
		{"allowed by default", "1", refused, &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64}}, false},
		{"capable", "1", allowed, engineFilter(true), true},
		{"no filter", "1", allowed, nil, false},
		{"no lease", "", allowed, engineFilter(true), false},
	} {
		for _, runtime := range []string{"runc", "crun"} {
			t.Run(tt.name+"/"+runtime, func(t *testing.T) {
				w := newWorld(t, runtime, "tracing-"+runtime, "true")
				if tt.request != "" {
					w.withRequest(tt.request)
				}
				w.edit(func(s *specs.Spec) {
					s.Linux.Seccomp = tt.filter
					s.Process.Args = []string{"/trace"}
					if tt.capable {
						c := s.Process.Capabilities
						for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Permitted} {
							*set = append(*set, "CAP_SYS_PTRACE")
						}
					}
				})
				w.must(command("cp " + program + " " + filepath.Join(w.dir, "rootfs/trace")))
				got := w.run(programs(t).wrapper, "", w.global("run", w.id)...)
				if d := cmp.Diff(tt.want, got.Out); d != "" || got.Code != 0 {
					t.Errorf("%+v (-want +got):\n%s", got, d)
				}
			})
		}
	}
}
