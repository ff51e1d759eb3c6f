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
	arg          uint64 // the first; profiles look at no other
}

// outcome is what a program returns for a call. The machine loads big-endian words.
func outcome(t *testing.T, machine *bpf.VM, c call) uint32 {
	t.Helper()
	var data []byte
	for _, word := range []uint32{c.number, c.arch, 0, 0, uint32(c.arg), uint32(c.arg >> 32)} {
		data = binary.BigEndian.AppendUint32(data, word)
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
		if slices.Contains(s.Names, name) && (len(s.Args) == 0 || holds(s.Args[0])) {
			return actionResult(s.Action, s.ErrnoRet).(bpf.RetConstant).Val
		}
	}
	return actionResult(p.DefaultAction, p.DefaultErrnoRet).(bpf.RetConstant).Val
}

// Whatever is called, the program does what the profile says.
func TestFilterMeansTheProfile(t *testing.T) {
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

func underFilter(program []bpf.RawInstruction) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	code := unix.SockFprog{Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	if _, _, err := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&code))); err != 0 {
		return fmt.Errorf("load the filter: %w", err)
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

// The filter is made while the image is read; it takes about 0.3 ms.
func BenchmarkDefault(b *testing.B) {
	for b.Loop() {
		Default([]string{"CAP_SYS_CHROOT"})
	}
}

// A container that has to stay in its project can't leave it, whatever is in the upper half of the
// argument, and makes all other ioctls.
func TestHoldInProject(t *testing.T) {
	p, on := holdInProject(defaultCalls(nil)), must(processorOf("amd64"))
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
