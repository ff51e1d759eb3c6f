package seccomp

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// programAnnotation gives crun the compiled program of the system call filter, in base64. Compiling it
// with libseccomp takes a quarter of the time in which crun runs a container. Other runtimes ignore the
// annotation and compile the same filter from the names.
const programAnnotation = "run.oci.seccomp_bpf_data"

// annotate returns the annotation for a filter of this package, nil for an unknown processor.
func annotate(calls *specs.LinuxSeccomp, goarch string) map[string]string {
	on, known := processorOf(goarch)
	if !known {
		return nil
	}
	program, err := bpf.Assemble(compile(calls, on))
	if err != nil {
		return nil // the runtime compiles the names
	}
	return map[string]string{programAnnotation: encode(program)}
}

// RemoveNames removes the names of system calls from a spec that has the compiled program, for crun,
// which would read hundreds and use none. The section itself stays: without one, crun exec applies no
// filter. What remains of it refuses every call, so a crun that doesn't know the annotation (before
// 0.17) starts no container.
func RemoveNames(spec *specs.Spec) {
	if spec.Linux.Seccomp == nil || spec.Annotations[programAnnotation] == "" {
		return
	}
	rest := *spec.Linux.Seccomp
	rest.DefaultAction, rest.DefaultErrnoRet, rest.Syscalls = specs.ActErrno, nil, nil
	spec.Linux.Seccomp = &rest
}

// processor has the properties of a processor that a program depends on.
type processor struct {
	audit uint32 // AUDIT_ARCH_*
	calls string // the table of its system calls
	// foreign is the first number of another ABI in the same table, 0 if there is none.
	foreign uint32
}

// processorOf returns the processor of a GOARCH. All known processors are little-endian.
func processorOf(goarch string) (p processor, known bool) {
	switch goarch {
	case "amd64": // the numbers of x32 have bit 30 set
		return processor{audit: unix.AUDIT_ARCH_X86_64, calls: amd64Calls + recentCalls, foreign: 1 << 30}, true
	case "arm64":
		return processor{audit: unix.AUDIT_ARCH_AARCH64, calls: arm64Calls + recentCalls}, true
	}
	return processor{}, false
}

// Offsets in struct seccomp_data of linux/seccomp.h. Words are loaded in the processor's byte order.
const offsetNumber, offsetArch, offsetArgs = 0, 4, 16

func loadWord(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offset, Size: 4} }

// skipUnless skips instructions unless the loaded word is equal to value.
func skipUnless(value uint32, skip uint8) bpf.Instruction {
	return bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: skip}
}

// compile returns the program of a filter of this package. Of several rules with conditions for a call,
// the last is checked first. The number is searched for in a tree of ranges, so that all calls cost
// about the same.
func compile(f *specs.LinuxSeccomp, on processor) []bpf.Instruction {
	otherwise := []bpf.Instruction{actionResult(f.DefaultAction, f.DefaultErrnoRet)}
	kill := bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	ranges := []callRange{{0, otherwise}}
	calls := compileCalls(f, parseNumbers(on.calls), otherwise)
	for _, n := range slices.Sorted(maps.Keys(calls)) {
		ranges = appendRange(appendRange(ranges, callRange{n, calls[n]}), callRange{n + 1, otherwise})
	}
	if on.foreign != 0 { // -1 belongs to no ABI
		ranges = appendRange(appendRange(ranges, callRange{on.foreign, []bpf.Instruction{kill}}), callRange{^uint32(0), otherwise})
	}
	return slices.Concat(
		[]bpf.Instruction{loadWord(offsetArch), bpf.JumpIf{Cond: bpf.JumpEqual, Val: on.audit, SkipTrue: 1}, kill, loadWord(offsetNumber)},
		searchTree(ranges),
	)
}

// compileCalls returns the instructions for each number that has rules.
func compileCalls(f *specs.LinuxSeccomp, numbers map[string]uint32, otherwise []bpf.Instruction) map[uint32][]bpf.Instruction {
	calls := make(map[uint32][]bpf.Instruction, len(numbers))
	for _, s := range f.Syscalls {
		r := actionResult(s.Action, s.ErrnoRet)
		for _, name := range s.Names {
			n, known := numbers[name]
			if !known {
				continue
			}
			if len(s.Args) == 0 {
				calls[n] = []bpf.Instruction{r}
				continue
			}
			if calls[n] == nil {
				calls[n] = otherwise
			}
			code := []bpf.Instruction{r}
			for _, a := range slices.Backward(s.Args) {
				code = checkArgument(a, code)
			}
			calls[n] = append(code, calls[n]...)
		}
	}
	return calls
}

// callRange has the instructions for the numbers from from on, up to the next range.
type callRange struct {
	from uint32
	do   []bpf.Instruction
}

// appendRange appends a range, and joins adjacent ranges with the same instructions.
func appendRange(all []callRange, r callRange) []callRange {
	if last := len(all) - 1; all[last].from == r.from {
		all = all[:last]
	}
	if len(all) > 0 && slices.Equal(all[len(all)-1].do, r.do) {
		return all
	}
	return append(all, r)
}

// searchTree returns a binary search for the range of the loaded number. Each path through it returns.
func searchTree(ranges []callRange) []bpf.Instruction {
	if len(ranges) == 1 {
		return ranges[0].do
	}
	half := len(ranges) / 2
	below, above := searchTree(ranges[:half]), searchTree(ranges[half:])
	// A conditional jump skips at most 255 instructions, so an unconditional one follows it.
	return slices.Concat([]bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: ranges[half].from, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(below))},
	}, below, above)
}

// checkArgument returns instructions that run code if the argument meets the condition, and skip it
// otherwise.
func checkArgument(a specs.LinuxSeccompArg, code []bpf.Instruction) []bpf.Instruction {
	at, skip := offsetArgs+8*uint32(a.Index), uint8(len(code)) //nolint:gosec // two dozen at most
	low, high := loadWord(at), loadWord(at+4)
	switch a.Op {
	case specs.OpEqualTo:
		return append([]bpf.Instruction{
			high,
			skipUnless(uint32(a.Value>>32), skip+2),
			low,
			skipUnless(uint32(a.Value), skip),
		}, code...)
	case specs.OpMaskedEqual: // Value is the mask
		return append([]bpf.Instruction{
			high,
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(a.Value >> 32)},
			skipUnless(uint32(a.ValueTwo>>32), skip+3),
			low,
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(a.Value)},
			skipUnless(uint32(a.ValueTwo), skip),
		}, code...)
	}
	return nil // filters of this package have no other operators
}

func actionResult(action specs.LinuxSeccompAction, errno *uint) bpf.Instruction {
	if action == specs.ActAllow {
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	}
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(*errno)}
}

// encode returns a program in the kernel's format, struct sock_filter of linux/filter.h, in base64.
func encode(program []bpf.RawInstruction) string {
	raw := make([]byte, 0, 8*len(program))
	for _, i := range program {
		raw = binary.LittleEndian.AppendUint16(raw, i.Op)
		raw = append(raw, i.Jt, i.Jf)
		raw = binary.LittleEndian.AppendUint32(raw, i.K)
	}
	return base64.StdEncoding.EncodeToString(raw)
}
