package seccomp

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// filterAnnotation gives crun the finished program of the system call filter, in
// base64. Having libseccomp make one from the names takes a quarter of the time in
// which crun runs a container. Runtimes that don't know the annotation use the
// names, which mean the same.
const filterAnnotation = "run.oci.seccomp_bpf_data"

// compiled is the annotation for a profile, nil where none can be made.
func compiled(p *specs.LinuxSeccomp, arch string) map[string]string {
	on, known := processors(arch)
	if !known {
		return nil
	}
	return map[string]string{filterAnnotation: encode(filter(p, on))}
}

// processor is what a filter has to know of the one it runs on.
type processor struct {
	audit uint32 // AUDIT_ARCH_*
	calls string // the table of its system calls
	// foreign is the first number of another ABI in the same table, 0 if there is none.
	foreign uint32
}

// processors by GOARCH. Both are little-endian.
func processors(arch string) (p processor, known bool) {
	switch arch {
	case "amd64": // the numbers of x32 have bit 30 set
		return processor{audit: unix.AUDIT_ARCH_X86_64, calls: amd64Calls + recentCalls, foreign: 1 << 30}, true
	case "arm64":
		return processor{audit: unix.AUDIT_ARCH_AARCH64, calls: arm64Calls + recentCalls}, true
	}
	return processor{}, false
}

// instruction of classic BPF: struct sock_filter of linux/filter.h.
type instruction struct {
	op     uint16
	jt, jf uint8
	k      uint32
}

// Operations, and offsets in struct seccomp_data of linux/seccomp.h.
const (
	load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	and  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	jump = unix.BPF_JMP | unix.BPF_JA
	ifEQ = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	ifGE = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	end  = unix.BPF_RET | unix.BPF_K

	offsetNumber, offsetArch, offsetArgs = 0, 4, 16
)

// filter compiles a profile of this package: rules without an argument, and rules
// by one argument, of which any may hold. The number is searched for in a tree of
// ranges, so that no call costs more than another.
func filter(p *specs.LinuxSeccomp, on processor) []instruction {
	otherwise := []instruction{result(p.DefaultAction, p.DefaultErrnoRet)}
	killed := []instruction{{op: end, k: unix.SECCOMP_RET_KILL_PROCESS}}
	ranges := []span{{0, otherwise}}
	calls := blocks(p, numbers(on.calls), otherwise)
	for _, n := range slices.Sorted(maps.Keys(calls)) {
		ranges = add(add(ranges, span{n, calls[n]}), span{n + 1, otherwise})
	}
	if on.foreign != 0 { // and -1, which is nothing anywhere
		ranges = add(add(ranges, span{on.foreign, killed}), span{^uint32(0), otherwise})
	}
	return slices.Concat(
		[]instruction{{op: load, k: offsetArch}, {op: ifEQ, k: on.audit, jt: 1}},
		killed,
		[]instruction{{op: load, k: offsetNumber}},
		tree(ranges),
	)
}

// blocks says what to do with each number that has rules.
func blocks(p *specs.LinuxSeccomp, number map[string]uint32, otherwise []instruction) map[uint32][]instruction {
	calls := make(map[uint32][]instruction, len(number))
	for _, s := range p.Syscalls {
		r := result(s.Action, s.ErrnoRet)
		alone := []instruction{r}
		for _, name := range s.Names {
			n, known := number[name]
			if !known {
				continue
			}
			if len(s.Args) == 0 {
				calls[n] = alone
				continue
			}
			if calls[n] == nil {
				calls[n] = otherwise
			}
			calls[n] = append(check(s.Args[0], r), calls[n]...)
		}
	}
	return calls
}

// span is what to do with the numbers from one on, up to the next span.
type span struct {
	from uint32
	do   []instruction
}

// add appends a span to those before it, and keeps them as few as possible.
func add(all []span, s span) []span {
	if last := len(all) - 1; all[last].from == s.from {
		all = all[:last]
	}
	if len(all) > 0 && slices.Equal(all[len(all)-1].do, s.do) {
		return all
	}
	return append(all, s)
}

// tree finds the span that the loaded number is in. Each way through it ends with
// a result.
func tree(s []span) []instruction {
	if len(s) == 1 {
		return s[0].do
	}
	half := len(s) / 2
	below, above := tree(s[:half]), tree(s[half:])
	// A condition alone can't jump further than 255.
	decide := []instruction{{op: ifGE, k: s[half].from, jf: 1}, {op: jump, k: uint32(len(below))}}
	return slices.Concat(decide, below, above)
}

// check returns r if the argument is as the rule wants it; if not, what follows
// decides. Jumps are counted from the next instruction on.
func check(a specs.LinuxSeccompArg, r instruction) []instruction {
	high, low := uint32(a.Value>>32), uint32(a.Value)
	at := offsetArgs + 8*uint32(a.Index)
	loadHigh, loadLow := instruction{op: load, k: at + 4}, instruction{op: load, k: at}
	switch a.Op {
	case specs.OpEqualTo:
		return []instruction{
			loadHigh,
			{op: ifEQ, k: high, jf: 3},
			loadLow,
			{op: ifEQ, k: low, jf: 1},
			r,
		}
	case specs.OpMaskedEqual: // Value is the mask
		return []instruction{
			loadHigh,
			{op: and, k: high},
			{op: ifEQ, k: uint32(a.ValueTwo >> 32), jf: 4},
			loadLow,
			{op: and, k: low},
			{op: ifEQ, k: uint32(a.ValueTwo), jf: 1},
			r,
		}
	}
	return nil // not in a profile of this package; it allows nothing
}

func result(action specs.LinuxSeccompAction, errno *uint) instruction {
	if action == specs.ActAllow {
		return instruction{op: end, k: unix.SECCOMP_RET_ALLOW}
	}
	return instruction{op: end, k: unix.SECCOMP_RET_ERRNO | uint32(*errno)}
}

// encode writes a program as the kernel reads it.
func encode(program []instruction) string {
	raw := make([]byte, 0, 8*len(program))
	for _, i := range program {
		raw = binary.LittleEndian.AppendUint16(raw, i.op)
		raw = append(raw, i.jt, i.jf)
		raw = binary.LittleEndian.AppendUint32(raw, i.k)
	}
	return base64.StdEncoding.EncodeToString(raw)
}
