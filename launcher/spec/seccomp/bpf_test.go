package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/projectquota"
)

// call is what a filter sees: struct seccomp_data, less the instruction pointer.
type call struct {
	number, arch uint32
	arg          uint64 // of each of its arguments
}

// outcome is what a program returns for a call. The machine loads big-endian words.
func outcome(t *testing.T, machine *bpf.VM, c call) uint32 {
	t.Helper()
	var data []byte
	for _, word := range []uint32{c.number, c.arch, 0, 0} {
		data = binary.BigEndian.AppendUint32(data, word)
	}
	for range 6 {
		data = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(data, uint32(c.arg)), uint32(c.arg>>32))
	}
	result, err := machine.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(result)
}

func machineFor(t *testing.T, calls *specs.LinuxSeccomp, on processor) *bpf.VM {
	t.Helper()
	machine, err := bpf.NewVM(compile(calls, on))
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// meaning is what the profile says of a call, by its words alone.
func meaning(p *specs.LinuxSeccomp, name string, arg uint64) uint32 {
	for _, s := range p.Syscalls {
		holds := func(a specs.LinuxSeccompArg) bool {
			switch a.Op {
			case specs.OpEqualTo:
				return arg == a.Value
			case specs.OpMaskedEqual:
				return arg&a.Value == a.ValueTwo
			}
			panic(a.Op)
		}
		if slices.Contains(s.Names, name) && !slices.ContainsFunc(s.Args, func(a specs.LinuxSeccompArg) bool { return !holds(a) }) {
			return actionResult(s.Action, s.ErrnoRet).(bpf.RetConstant).Val
		}
	}
	return actionResult(p.DefaultAction, p.DefaultErrnoRet).(bpf.RetConstant).Val
}

// Whatever is called, the program does what the profile says.
func TestFilterFollowsProfile(t *testing.T) {
	args := []uint64{0, 1, 8, 37, 38, 39, 40, 41, 0x20000, 0x20008, 0xffffffff, 0xfffffffe, 1 << 32, 1<<32 | 38, 1<<32 | 40, 1<<32 | 41, 1 << 63, ^uint64(0)}
	for flag := uint64(1); flag < 1<<33; flag <<= 1 {
		args = append(args, flag)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, caps := range [][]string{nil, {"CAP_SYS_CHROOT"}} {
			p, on := defaultCalls(caps), must(processorOf(arch))
			machine := machineFor(t, p, on)
			names := map[uint32]string{}
			for name, n := range parseNumbers(on.calls) {
				names[n] = name
			}
			for n := range uint32(600) {
				for _, arg := range args {
					want := meaning(p, names[n], arg)
					if got := outcome(t, machine, call{n, on.audit, arg}); got != want {
						t.Fatalf("%s: call %d (%s) of %#x: %#x, want %#x", arch, n, names[n], arg, got, want)
					}
				}
			}
		}
	}
}

// The kernel takes an int: what is above it must not hide a family.
func TestFilterKnowsFamilies(t *testing.T) {
	on := must(processorOf("amd64"))
	machine, socket := machineFor(t, defaultCalls(nil), on), parseNumbers(on.calls)["socket"]
	for family := range uint64(64) {
		want := uint32(unix.SECCOMP_RET_ALLOW)
		if family == unix.AF_ALG || family == unix.AF_VSOCK {
			want = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		}
		for _, above := range []uint64{0, 1 << 32, 1 << 63, 0xffffffff << 32} {
			if got := outcome(t, machine, call{socket, on.audit, above | family}); got != want {
				t.Errorf("family %d with %#x: %#x, want %#x", family, above, got, want)
			}
		}
	}
}

func TestFilterEndsForeignPrograms(t *testing.T) {
	on := must(processorOf("amd64"))
	machine := machineFor(t, defaultCalls(nil), on)
	enosys := uint32(unix.SECCOMP_RET_ERRNO | unix.ENOSYS)
	for _, tt := range []struct {
		name string
		call call
		want uint32
	}{
		{"native", call{number: 0, arch: on.audit}, unix.SECCOMP_RET_ALLOW},
		{"32-bit", call{number: 0, arch: unix.AUDIT_ARCH_I386}, unix.SECCOMP_RET_KILL_PROCESS},
		{"another processor's", call{number: 0, arch: unix.AUDIT_ARCH_AARCH64}, unix.SECCOMP_RET_KILL_PROCESS},
		{"first of x32", call{number: 1 << 30, arch: on.audit}, unix.SECCOMP_RET_KILL_PROCESS},
		{"last of x32", call{number: ^uint32(0) - 1, arch: on.audit}, unix.SECCOMP_RET_KILL_PROCESS},
		{"unknown", call{number: 1<<30 - 1, arch: on.audit}, enosys},
		{"none", call{number: ^uint32(0), arch: on.audit}, enosys},
	} {
		if got := outcome(t, machine, tt.call); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}

func must(p processor, known bool) processor {
	if !known {
		panic("no such processor")
	}
	return p
}

// The tables, where a name or number too many would move all that follow.
func TestNumbers(t *testing.T) {
	want := map[string]map[string]uint32{
		"amd64": {
			"read": 0, "getpid": 39, "clone": 56, "ptrace": 101, "_sysctl": 156, "openat": 257, "newfstatat": 262,
			"finit_module": 313, "rseq": 334, "pidfd_send_signal": 424, "clone3": 435, "mseal": 462,
		},
		"arm64": {
			"io_setup": 0, "ioctl": 29, "openat": 56, "newfstatat": 79, "ptrace": 117, "clone": 220, "accept4": 242,
			"wait4": 260, "finit_module": 273, "rseq": 293, "pidfd_send_signal": 424, "clone3": 435, "mseal": 462,
		},
	}
	for arch, some := range want {
		got := parseNumbers(must(processorOf(arch)).calls)
		for name := range got {
			if _, asked := some[name]; !asked {
				delete(got, name)
			}
		}
		if diff := cmp.Diff(some, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", arch, diff)
		}
	}
}

func TestAnnotate(t *testing.T) {
	if got := annotate(defaultCalls(nil), "riscv64"); got != nil {
		t.Errorf("a filter for an unknown processor: %v", got)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if text := annotate(defaultCalls(nil), arch)[programAnnotation]; len(text) < 1000 || strings.ContainsAny(text, "\n ") {
			t.Errorf("%s: %q", arch, text)
		}
	}
}

// TestRemoveNames: without the program the names stay, and with it what is left refuses all calls.
func TestRemoveNames(t *testing.T) {
	allowed := func() *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{
			DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64}, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog},
			Syscalls: []specs.LinuxSyscall{{Names: []string{"mkdir"}, Action: specs.ActErrno}},
		}
	}
	refused := allowed()
	refused.DefaultAction, refused.Syscalls = specs.ActErrno, nil
	for _, tt := range []struct {
		name       string
		has        map[string]string
		have, want *specs.LinuxSeccomp
	}{
		{"no filter", nil, nil, nil},
		{"names", map[string]string{"other": "text"}, allowed(), allowed()},
		{"names and a program", map[string]string{programAnnotation: "BgAAAAAA/38="}, allowed(), refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Annotations: tt.has, Linux: &specs.Linux{Seccomp: tt.have}}
			RemoveNames(spec)
			if diff := cmp.Diff(tt.want, spec.Linux.Seccomp); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(allowed(), tt.have); tt.have != nil && diff != "" {
				t.Errorf("the filter that other specs have, too, has changed:\n%s", diff)
			}
		})
	}
}

// The kernel takes the program, and calls end as people know it.
func TestFilterInTheKernel(t *testing.T) {
	on, known := processorOf(runtime.GOARCH)
	if !known {
		return // nothing is compiled here
	}
	program, err := bpf.Assemble(compile(defaultCalls(nil), on))
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the filter goes with the thread
		results <- underFilter(program)
	}()
	if err := <-results; err != nil {
		t.Error(err)
	}
}

// loadFilter puts the calling thread under the filter, for ever.
func loadFilter(program []bpf.RawInstruction) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	code := unix.SockFprog{Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	if _, _, err := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&code))); err != 0 {
		return fmt.Errorf("load the filter: %w", err)
	}
	return nil
}

func underFilter(program []bpf.RawInstruction) error {
	if err := loadFilter(program); err != nil {
		return err
	}
	var errs []error
	for _, tt := range []struct {
		name   string
		number uintptr
		arg    uintptr
		want   unix.Errno
	}{
		{"getppid", unix.SYS_GETPPID, 0, 0},
		{"personality, asked", unix.SYS_PERSONALITY, 0xffffffff, 0},
		{"personality, set", unix.SYS_PERSONALITY, 0x1234, unix.ENOSYS},
		{"unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUTS, unix.EPERM},
		{"socket of AF_ALG", unix.SYS_SOCKET, unix.AF_ALG, unix.ENOSYS},
		{"socket of AF_VSOCK, hidden", unix.SYS_SOCKET, 1<<32 | unix.AF_VSOCK, unix.ENOSYS},
		{"socket of no family", unix.SYS_SOCKET, 0, unix.EAFNOSUPPORT},
		{"clone into a namespace", unix.SYS_CLONE, unix.CLONE_NEWUTS, unix.ENOSYS},
		{"clone3", unix.SYS_CLONE3, 0, unix.ENOSYS},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, 0, unix.ENOSYS},
		{"a number that isn't given", 5000, 0, unix.ENOSYS},
	} {
		if _, _, got := unix.RawSyscall(tt.number, tt.arg, 0, 0); got != tt.want {
			errs = append(errs, fmt.Errorf("%s: %q, want %q", tt.name, got, tt.want))
		}
	}
	return errors.Join(errs...)
}

// TestRestrictArguments: no filter lets a process have a pidfd of the process at the other end of a socket, a lease on a file, or
// events of all processes, and none lets CAP_SYS_ADMIN go through all mount namespaces. All allow these calls with other
// arguments.
func TestRestrictArguments(t *testing.T) {
	parse := func(caps ...string) *Filter {
		f, err := ParseProfile([]byte(`{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "syscalls": [{"action": "SCMP_ACT_ALLOW",
		"names": ["getsockopt", "setsockopt", "socketcall", "io_uring_setup", "`+strings.Join(strings.Fields(allowed), `", "`)+`"]}]}`), caps, "6.12")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	on, known := processorOf(runtime.GOARCH)
	if !known {
		t.Skip("nothing is compiled for this processor")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, peerPIDFD); err == nil {
		_ = unix.Close(fd)
	} else {
		t.Logf("without a filter: %v", err) // an older kernel
	}
	filters := map[string]*Filter{
		"default": Default(nil), "of all capabilities": Default(every()), "in a project": DefaultInProject(nil), "unconfined": Unconfined(nil),
		"of a file": parse(), "of a file, capSysAdmin": parse("CAP_SYS_ADMIN"),
	}
	for kind, f := range filters {
		program, err := bpf.Assemble(compile(f.Calls, on))
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the filter goes with the thread
			all := strings.HasPrefix(kind, "of all") || kind == "unconfined"
			results <- errors.Join(
				makeHeldCalls(program, pair[0], all, all || strings.HasSuffix(kind, "capSysAdmin")), traceNobody(strings.HasPrefix(kind, "of all")),
			)
		}()
		if err := <-results; err != nil {
			t.Errorf("filter %s: %v", kind, err)
		}
		for _, name := range []string{"io_uring_setup", "socketcall"} {
			if got := verdict(f, name); got != specs.ActErrno {
				t.Errorf("filter %s: %s: %s", kind, name, got)
			}
		}
	}
	if err := errors.Join(unix.Close(pair[0]), unix.Close(pair[1])); err != nil {
		t.Fatal(err)
	}
}

func makeHeldCalls(program []bpf.RawInstruction, socket int, mayMeasure, capSysAdmin bool) error {
	if err := loadFilter(program); err != nil {
		return err
	}
	number, size, user := int32(1<<16), uint32(4), [3]int32{}
	userSize := uint32(len(user) * 4)
	const none = ^uintptr(0)
	calls := []struct {
		name   string
		number uintptr
		args   [5]uintptr
		want   unix.Errno
	}{
		{"the peer's pidfd", unix.SYS_GETSOCKOPT, [5]uintptr{uintptr(socket), unix.SOL_SOCKET, peerPIDFD, uintptr(unsafe.Pointer(&number)), uintptr(unsafe.Pointer(&size))}, unix.ENOPROTOOPT},
		{"the peer's pidfd, hidden", unix.SYS_GETSOCKOPT, [5]uintptr{uintptr(socket), unix.SOL_SOCKET, 1<<32 | peerPIDFD, uintptr(unsafe.Pointer(&number)), uintptr(unsafe.Pointer(&size))}, unix.ENOPROTOOPT},
		{"pidfds with messages", unix.SYS_SETSOCKOPT, [5]uintptr{uintptr(socket), unix.SOL_SOCKET, passPIDFD, uintptr(unsafe.Pointer(&number)), 4}, unix.ENOPROTOOPT},
		{"the peer's user", unix.SYS_GETSOCKOPT, [5]uintptr{uintptr(socket), unix.SOL_SOCKET, unix.SO_PEERCRED, uintptr(unsafe.Pointer(&user)), uintptr(unsafe.Pointer(&userSize))}, 0},
		{"the buffer's size", unix.SYS_SETSOCKOPT, [5]uintptr{uintptr(socket), unix.SOL_SOCKET, unix.SO_SNDBUF, uintptr(unsafe.Pointer(&number)), 4}, 0},
		{"a lease", unix.SYS_FCNTL, [5]uintptr{uintptr(socket), unix.F_SETLEASE, unix.F_WRLCK}, unix.EPERM},
		{"a lease, hidden", unix.SYS_FCNTL, [5]uintptr{uintptr(socket), 1<<32 | unix.F_SETLEASE, unix.F_WRLCK}, unix.EPERM},
		{"a delegation", unix.SYS_FCNTL, [5]uintptr{uintptr(socket), 1040, 0}, unix.EPERM},
		{"whether there is a lease", unix.SYS_FCNTL, [5]uintptr{uintptr(socket), unix.F_GETFL}, 0},
	}
	if capSysAdmin {
		for i, request := range []uintptr{nextMountNamespace, previousMountNamespace, 1<<32 | nextMountNamespace} {
			c := calls[0]
			c.name, c.number, c.args, c.want = fmt.Sprintf("other mount namespaces %d", i), unix.SYS_IOCTL, [5]uintptr{uintptr(socket), request}, unix.EPERM
			calls = append(calls, c)
		}
	}
	for _, request := range []uintptr{nextMountNamespace - 1, previousMountNamespace + 1} { // a socket has neither
		c := calls[0]
		c.name, c.number, c.args, c.want = "another ioctl", unix.SYS_IOCTL, [5]uintptr{uintptr(socket), request}, unix.ENOTTY
		calls = append(calls, c)
	}
	if mayMeasure {
		calls = append(calls, calls[0], calls[0], calls[0], calls[0])[:len(calls)+4]
		events := calls[len(calls)-4:]
		events[0].name, events[0].args, events[0].want = "events of all", [5]uintptr{0, none, 0, none}, unix.EPERM
		events[1].name, events[1].args, events[1].want = "events of all, hidden", [5]uintptr{0, 0xffffffff, 0, none}, unix.EPERM
		events[2].name, events[2].args, events[2].want = "own events", [5]uintptr{0, 0, none, none}, unix.EFAULT
		events[3].name, events[3].args, events[3].want = "events of a cgroup", [5]uintptr{0, 0, 0, none, unix.PERF_FLAG_PID_CGROUP}, unix.EPERM
		for i := range events {
			events[i].number = unix.SYS_PERF_EVENT_OPEN
		}
	}
	var errs []error
	for _, c := range calls {
		if _, _, got := unix.RawSyscall6(c.number, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], 0); got != c.want {
			errs = append(errs, fmt.Errorf("%s: %q, want %q", c.name, got, c.want))
		}
	}
	return errors.Join(errs...)
}

// traceNobody makes calls of ptrace for a process that doesn't exist, under a filter that was loaded.
func traceNobody(mayTraceExits bool) error {
	exits := unix.EPERM
	if mayTraceExits {
		exits = unix.ESRCH
	}
	var errs []error
	for _, c := range []struct {
		name             string
		request, options uintptr
		want             unix.Errno
	}{
		{"traces", unix.PTRACE_SEIZE, unix.PTRACE_O_TRACEEXEC, unix.ESRCH},
		{"traces to the end", unix.PTRACE_SEIZE, unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEEXIT, exits},
		{"traces to the end, hidden", unix.PTRACE_SEIZE, 1<<32 | unix.PTRACE_O_TRACEEXIT, exits},
		{"options", unix.PTRACE_SETOPTIONS, unix.PTRACE_O_TRACESYSGOOD, unix.ESRCH},
		{"options, to the end", unix.PTRACE_SETOPTIONS, unix.PTRACE_O_TRACEEXIT, exits},
		{"old options, to the end", 21, unix.PTRACE_O_TRACEEXIT, exits},
		{"writes a word", unix.PTRACE_POKEDATA, unix.PTRACE_O_TRACEEXIT, unix.ESRCH},
	} {
		if _, _, got := unix.RawSyscall6(unix.SYS_PTRACE, c.request, 1<<31-1, 0, c.options, 0, 0); got != c.want {
			errs = append(errs, fmt.Errorf("ptrace %s: %q, want %q", c.name, got, c.want))
		}
	}
	return errors.Join(errs...)
}

// The filter is made while the image is read; it takes about 0.3 ms.
func BenchmarkDefault(b *testing.B) {
	for b.Loop() {
		Default([]string{"CAP_SYS_CHROOT"})
	}
}

// A container that has to stay in its project can't leave it, whatever is in the upper half of the
// argument, and makes all other ioctls.
func TestRestrictProject(t *testing.T) {
	p, on := restrictArguments(defaultCalls(nil), nil, projectRequests()), must(processorOf("amd64"))
	machine := machineFor(t, p, on)
	const ioctl, arch, eperm = 16, unix.AUDIT_ARCH_X86_64, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	try := func(request uint64) uint32 {
		t.Helper()
		var data []byte
		for _, word := range []uint32{ioctl, arch, 0, 0, 3, 0, uint32(request), uint32(request >> 32)} {
			data = binary.BigEndian.AppendUint32(data, word)
		}
		result, err := machine.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(result)
	}
	for _, held := range []uint64{projectquota.SetAttributes, projectquota.SetFlags} {
		for _, upper := range []uint64{0, 1 << 32, 1 << 63, 0xffffffff << 32} {
			if got := try(held | upper); got != eperm {
				t.Errorf("request %#x: %#x", held|upper, got)
			}
		}
		for bit := range 32 {
			if got := try(held ^ 1<<bit); got != unix.SECCOMP_RET_ALLOW {
				t.Errorf("request %#x: %#x", held^1<<bit, got)
			}
		}
	}
	for _, request := range []uint64{0, 0xffffffff, unix.TCGETS, unix.FS_IOC_GETFLAGS, 0x541b} {
		if got := try(request); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("request %#x: %#x", request, got)
		}
	}
	if verdict(&Filter{Calls: p}, "file_setattr") == specs.ActAllow {
		t.Error("file_setattr is allowed")
	}
}

// TestRestrictKeepsRefusals: what a profile refuses stays refused, what it logs is held too, and conditions that can't be
// combined are an error.
func TestRestrictKeepsRefusals(t *testing.T) {
	rule := func(action, names, args string) string {
		return `{"action": "SCMP_ACT_` + action + `", "names": [` + names + `]` + args + `}`
	}
	for _, tt := range []struct {
		name, action, rules string
		call                string
		arg                 uint64
		want                specs.LinuxSeccompAction
		fails               string
	}{
		{"refused in an open one", "ALLOW", rule("ERRNO", `"setsockopt"`, ""), "setsockopt", 1, specs.ActErrno, ""},
		{"held in an open one", "ALLOW", "", "setsockopt", passPIDFD, specs.ActErrno, ""},
		{"free in an open one", "ALLOW", "", "setsockopt", 1, specs.ActAllow, ""},
		{"held in one that logs", "LOG", "", "setsockopt", passPIDFD, specs.ActErrno, ""},
		{"held where it is logged", "ERRNO", rule("LOG", `"fcntl"`, ""), "fcntl", unix.F_SETLEASE, specs.ActErrno, ""},
		{"logged", "ERRNO", rule("LOG", `"fcntl"`, ""), "fcntl", 1, specs.ActLog, ""},
		{"not named", "ERRNO", rule("ALLOW", `"read"`, ""), "fcntl", 1, specs.ActErrno, ""},
		{"with conditions", "ERRNO", rule("ALLOW", `"read", "fcntl"`, `, "args": [{"index": 1, "value": 3, "op": "SCMP_CMP_EQ"}]`), "", 0, "", "fcntl is allowed with some arguments only"},
		{"an argument too many", "ERRNO", rule("ALLOW", `"read"`, `, "args": [{"index": 6, "value": 3, "op": "SCMP_CMP_EQ"}]`), "", 0, "", "at most six arguments"},
	} {
		f, err := ParseProfile([]byte(`{"defaultAction": "SCMP_ACT_`+tt.action+`", "defaultErrnoRet": 1, "syscalls": [`+tt.rules+`]}`), nil, "6.12")
		if tt.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("%s: error %v", tt.name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got := f.Calls.DefaultAction
		for _, s := range f.Calls.Syscalls {
			applies := !slices.ContainsFunc(s.Args, func(a specs.LinuxSeccompArg) bool { return tt.arg&a.Value != a.ValueTwo })
			if slices.Contains(s.Names, tt.call) && applies {
				got = s.Action
				break
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if last := f.Calls.Syscalls[slices.IndexFunc(f.Calls.Syscalls, func(s specs.LinuxSyscall) bool { return slices.Contains(s.Names, "socketcall") })]; tt.action == "ERRNO" && *last.ErrnoRet == 1 {
			t.Errorf("%s: socketcall has the default's error: runtimes leave out the rule", tt.name)
		}
	}
}
