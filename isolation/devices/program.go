package devices

import (
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
)

// Instruction is one of the kernel's struct bpf_insn, on machines that are little
// endian, as all are that GPUs are built into.
type Instruction struct {
	Code uint8
	// Registers: the destination's number is in the low half, the source's in the
	// high one.
	Registers uint8
	Offset    int16
	Immediate int32
}

// Program is a blueprint of a program of the type BPF_PROG_TYPE_CGROUP_DEVICE: it
// answers 1 to what is allowed and 0 to the rest. Equal rules give equal programs.
type Program []Instruction

// Registers of a program; those of the regContext's fields keep them throughout.
const (
	regAnswer = iota
	regContext
	regAsked // letters that no rule has decided yet
	regScratch
)

// Opcodes, by Documentation/bpf/standardization/instruction-set.rst.
const (
	opLoad    = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	opHalf    = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_H
	opMove    = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	opCopy    = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	opAnd     = unix.BPF_ALU64 | unix.BPF_AND | unix.BPF_K
	opShift   = unix.BPF_ALU64 | unix.BPF_RSH | unix.BPF_K
	opIfEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opUnless  = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	opExit    = unix.BPF_JMP | unix.BPF_EXIT
)

// struct bpf_cgroup_dev_ctx { __u32 access_type, major, minor; }: the type is the low
// half of the first, the access its high half.
const (
	atKind  = 0
	atMajor = 4
	atMinor = 8
)

func newInstruction(code, registers uint8, offset int16, immediate int64) Instruction {
	return Instruction{code, registers, offset, int32(immediate)} //nolint:gosec // numbers of devices, of 20 bits
}

func returnCode(allow int64) []Instruction {
	return []Instruction{newInstruction(opMove, regAnswer, 0, allow), newInstruction(opExit, 0, 0, 0)}
}

// Compile translates the rules into a program. It is pure. The error names an ambiguous rule.
//
// The rules are tried from the last to the first, each only for the letters that are
// still undecided.
func Compile(rules []edits.Rule) (Program, error) {
	if err := checkAll(rules); err != nil {
		return nil, err
	}
	p := Program{
		newInstruction(opLoad, regAsked|regContext<<4, atKind, 0),
		newInstruction(opShift, regAsked, 0, 16),
		newInstruction(opUnless, regAsked, 2, 0),
	}
	p = append(p, returnCode(1)...) // access(2) with F_OK has no letters
	for i := len(rules) - 1; i >= 0; i-- {
		r := rules[i]
		if MatchesAll(r) {
			return append(p, returnCode(boolToInt(r.Allow))...), nil
		}
		p = append(p, ruleCode(r)...)
	}
	return append(p, returnCode(0)...), nil
}

func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// ruleCode is the code of one rule: to decide, or to go on with what follows it.
func ruleCode(r edits.Rule) (code []Instruction) {
	a := int64(accessBits(r.Access))
	if a == 0 {
		return nil
	}
	number := int64(unix.BPF_DEVCG_DEV_CHAR)
	if r.Type == "b" {
		number = unix.BPF_DEVCG_DEV_BLOCK
	}
	code = append(code, compareField(opHalf, atKind, number)...)
	if r.Major != edits.Any {
		code = append(code, compareField(opLoad, atMajor, r.Major)...)
	}
	if r.Minor != edits.Any {
		code = append(code, compareField(opLoad, atMinor, r.Minor)...)
	}
	tests := len(code)
	if r.Allow {
		code = append(code, newInstruction(opAnd, regAsked, 0, int64(everything)&^a), newInstruction(opUnless, regAsked, 2, 0))
	} else {
		code = append(code, newInstruction(opCopy, regScratch|regAsked<<4, 0, 0), newInstruction(opAnd, regScratch, 0, a), newInstruction(opIfEqual, regScratch, 2, 0))
	}
	code = append(code, returnCode(boolToInt(r.Allow))...)
	for i := 1; i < tests; i += 2 {
		code[i].Offset = int16(len(code) - i - 1) //nolint:gosec // a dozen at most
	}
	return code
}

// compareField compares a field of the context; the jump is still to be set. The field is loaded
// again for each comparison. If it stayed in a register, the verifier would track its value and
// check the following code once per value: hundreds of rules then take 100 ms.
func compareField(load uint8, field int16, number int64) []Instruction {
	return []Instruction{newInstruction(load, regScratch|regContext<<4, field, 0), newInstruction(opUnless, regScratch, 0, number)}
}
