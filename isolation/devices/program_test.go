package devices

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/cdi/edits"
)

const every = edits.Any

func allow(kind string, major, minor int64, access string) edits.Rule {
	return edits.Rule{Allow: true, Type: kind, Major: major, Minor: minor, Access: access}
}

func deny(kind string, major, minor int64, access string) edits.Rule {
	return edits.Rule{Type: kind, Major: major, Minor: minor, Access: access}
}

func denyAll() edits.Rule { return deny("a", every, every, "rwm") }

func describeRules(rules []edits.Rule) string {
	var all []string
	for _, r := range rules {
		all = append(all, Format(r))
	}
	return strings.Join(all, "; ")
}

// question is one access about which the kernel asks a program.
type question struct {
	kind         string
	major, minor int64
	access       string
}

// interpret runs a program as the kernel would: by the numbers of the instruction set, not by the
// compiler's names. An unknown instruction, a register that wasn't written, and a jump back or out
// of the program are errors.
func interpret(p Program, q question) (answer uint64, err error) {
	kind := map[string]uint32{"b": unix.BPF_DEVCG_DEV_BLOCK, "c": unix.BPF_DEVCG_DEV_CHAR}[q.kind]
	var access uint32
	for _, letter := range q.access {
		access |= map[rune]uint32{'m': unix.BPF_DEVCG_ACC_MKNOD, 'r': unix.BPF_DEVCG_ACC_READ, 'w': unix.BPF_DEVCG_ACC_WRITE}[letter]
	}
	context := make([]byte, 12)
	binary.LittleEndian.PutUint32(context, access<<16|kind)
	binary.LittleEndian.PutUint32(context[4:], uint32(q.major))
	binary.LittleEndian.PutUint32(context[8:], uint32(q.minor))
	var regs [11]uint64
	written := map[uint8]bool{1: true}
	for at := 0; ; at++ {
		if at >= len(p) {
			return 0, fmt.Errorf("ran out of the program at %d", at)
		}
		i := p[at]
		dst, src := i.Registers&15, i.Registers>>4
		switch i.Code {
		case 0x61: // u32 load
			if src != 1 || i.Offset%4 != 0 || i.Offset < 0 || i.Offset > 8 {
				return 0, fmt.Errorf("instruction %d reads outside of the context", at)
			}
			regs[dst], written[dst] = uint64(binary.LittleEndian.Uint32(context[i.Offset:])), true
			continue
		case 0x69: // u16 load, of the type
			if src != 1 || i.Offset != 0 {
				return 0, fmt.Errorf("instruction %d reads outside of the context", at)
			}
			regs[dst], written[dst] = uint64(binary.LittleEndian.Uint16(context)), true
			continue
		case 0xb7:
			regs[dst], written[dst] = uint64(i.Immediate), true
			continue
		case 0xbf:
			if !written[src] {
				return 0, fmt.Errorf("instruction %d reads register %d", at, src)
			}
			regs[dst], written[dst] = regs[src], true
			continue
		case 0x95:
			dst = 0
		}
		if !written[dst] {
			return 0, fmt.Errorf("instruction %d reads register %d", at, dst)
		}
		jump := false
		switch i.Code {
		case 0x57:
			regs[dst] &= uint64(i.Immediate)
		case 0x77:
			regs[dst] >>= uint64(i.Immediate)
		case 0x15:
			jump = regs[dst] == uint64(i.Immediate)
		case 0x55:
			jump = regs[dst] != uint64(i.Immediate)
		case 0x95:
			return regs[0], nil
		default:
			return 0, fmt.Errorf("instruction %d: opcode %#x", at, i.Code)
		}
		if jump && i.Offset <= 0 {
			return 0, fmt.Errorf("instruction %d jumps back", at)
		}
		if jump {
			at += int(i.Offset)
		}
	}
}

func allowedByProgram(t interface{ Fatalf(string, ...any) }, p Program, q question) bool {
	answer, err := interpret(p, q)
	if err != nil || answer > 1 {
		t.Fatalf("%+v: answer %d, %v", q, answer, err)
	}
	return answer == 1
}

// accesses are all combinations of letters, and none.
func accesses() []string { return []string{"", "r", "w", "m", "rw", "rm", "wm", "rwm"} }

func questions(majors, minors []int64, accesses []string) (all []question) {
	for _, kind := range []string{"c", "b"} {
		for _, major := range majors {
			for _, minor := range minors {
				for _, a := range accesses {
					all = append(all, question{kind, major, minor, a})
				}
			}
		}
	}
	return all
}

func drawRule(majors, minors []int64) *rapid.Generator[edits.Rule] {
	return rapid.Custom(func(t *rapid.T) edits.Rule {
		r := edits.Rule{
			Allow:  rapid.Bool().Draw(t, "allow"),
			Type:   rapid.SampledFrom([]string{"c", "c", "c", "c", "b", "b", "a", ""}).Draw(t, "type"),
			Major:  rapid.SampledFrom(append(slices.Clone(majors), every)).Draw(t, "major"),
			Minor:  rapid.SampledFrom(append(slices.Clone(minors), every)).Draw(t, "minor"),
			Access: rapid.SampledFrom([]string{"rwm", "rw", "r", "w", "m", "rm", "wr", "", "rr"}).Draw(t, "access"),
		}
		if MatchesAll(r) && r.Allow {
			r.Major, r.Minor, r.Access = every, every, "mwr"
		}
		return r
	})
}

func TestCompile(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules []edits.Rule
		q     question
		want  bool
	}{
		{"nothing is allowed", nil, question{"c", 1, 3, "r"}, false},
		{"what isn't spoken of", []edits.Rule{allow("c", 1, 5, "rwm")}, question{"c", 1, 3, "r"}, false},
		{"node", []edits.Rule{denyAll(), allow("c", 195, 0, "rw")}, question{"c", 195, 0, "rw"}, true},
		{"its neighbour", []edits.Rule{denyAll(), allow("c", 195, 0, "rw")}, question{"c", 195, 1, "r"}, false},
		{"more access", []edits.Rule{denyAll(), allow("c", 195, 0, "rw")}, question{"c", 195, 0, "rm"}, false},
		{"other kind", []edits.Rule{denyAll(), allow("c", 195, 0, "rw")}, question{"b", 195, 0, "r"}, false},
		{"access in pieces", []edits.Rule{allow("c", 195, 0, "r"), allow("c", 195, every, "w")}, question{"c", 195, 0, "rw"}, true},
		{"a part denied", []edits.Rule{allow("c", 195, 0, "rw"), deny("c", 195, 0, "w")}, question{"c", 195, 0, "rw"}, false},
		{"the rest of it", []edits.Rule{allow("c", 195, 0, "rw"), deny("c", 195, 0, "w")}, question{"c", 195, 0, "r"}, true},
		{"the last wins", []edits.Rule{deny("c", 195, 0, "r"), allow("c", every, every, "r")}, question{"c", 195, 0, "r"}, true},
		{"hole", []edits.Rule{allow("a", every, every, "rwm"), deny("c", 195, every, "rwm")}, question{"c", 195, 9, "r"}, false},
		{"beside the hole", []edits.Rule{allow("", every, every, "rwm"), deny("c", 195, every, "rwm")}, question{"b", 195, 9, "rwm"}, true},
		{"minor of every major", []edits.Rule{allow("b", every, 7, "m")}, question{"b", 3000, 7, "m"}, true},
		{"the greatest", []edits.Rule{allow("b", 4095, 1<<20-1, "m")}, question{"b", 4095, 1<<20 - 1, "m"}, true},
		{"a denial of all that names one", []edits.Rule{allow("c", 1, 3, "r"), deny("a", 8, 0, "w")}, question{"c", 1, 3, "r"}, false},
		{"a rule without access", []edits.Rule{allow("c", 1, 3, "r"), deny("c", 1, 3, "")}, question{"c", 1, 3, "r"}, true},
		{"whether the node is there", []edits.Rule{denyAll()}, question{"c", 1, 3, ""}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Compile(tt.rules)
			if err != nil {
				t.Fatal(err)
			}
			if got := allowedByProgram(t, p, tt.q); got != tt.want {
				t.Errorf("the program says %v", got)
			}
			if got := Allowed(tt.rules, tt.q.kind, tt.q.major, tt.q.minor, tt.q.access); got != tt.want {
				t.Errorf("Allowed says %v", got)
			}
		})
	}
}

// TestProgramAgreesWithAllowed: for any list, the program answers every question as [Allowed] does.
func TestProgramAgreesWithAllowed(t *testing.T) {
	majors, minors := []int64{1, 195, 508}, []int64{0, 3, 255}
	all := questions(append(majors, 7), append(minors, 4), accesses())
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(drawRule(majors, minors), 0, 12).Draw(t, "rules")
		p, err := Compile(rules)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range all {
			if got, want := allowedByProgram(t, p, q), Allowed(rules, q.kind, q.major, q.minor, q.access); got != want {
				t.Fatalf("%+v: the program says %v, the rules %v: %s", q, got, want, describeRules(rules))
			}
		}
	})
}

// TestReduceAgreesWithAllowed: the list without order allows the same, letter by letter, or
// reduceRules returns an error.
func TestReduceAgreesWithAllowed(t *testing.T) {
	majors, minors := []int64{1, 195}, []int64{0, 3}
	all := questions(append(majors, 7), append(minors, 4), []string{"r", "w", "m"})
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(drawRule(majors, minors), 0, 8).Draw(t, "rules")
		l, err := reduceRules(rules)
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), "denies a part") {
				t.Fatal(err)
			}
			return
		}
		for _, q := range all {
			if got, want := l.allowedByKernel(q), Allowed(rules, q.kind, q.major, q.minor, q.access); got != want {
				t.Fatalf("%+v: the list says %v, the rules %v: %s became %+v", q, got, want, describeRules(rules), l)
			}
		}
	})
	if refused == 0 {
		t.Error("no list was refused")
	}
}

// allowedByKernel evaluates a list as the kernel does on cgroup v1: one entry has to allow the whole access.
func (l list) allowedByKernel(q question) bool {
	if l.all {
		return true
	}
	return slices.ContainsFunc(l.entries, func(e entry) bool {
		return device{q.kind, q.major, q.minor}.isWithin(e.device) && accessBits(q.access)&^e.access == 0
	})
}

func TestReduce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules []edits.Rule
		want  string
	}{
		{"nothing", nil, "false []"},
		{"united", []edits.Rule{allow("c", 1, 3, "r"), allow("b", 1, 3, "r"), allow("c", 1, 3, "wr")}, "false [c 1:3 rw b 1:3 r]"},
		{"a letter denied", []edits.Rule{allow("c", 1, 3, "rwm"), deny("c", 1, 3, "w")}, "false [c 1:3 rm]"},
		{"all letters denied", []edits.Rule{allow("c", 1, 3, "rw"), deny("c", every, 3, "rw"), allow("c", 1, 3, "m")}, "false [c 1:3 m]"},
		{"deny all", []edits.Rule{allow("c", 1, 3, "rwm"), denyAll(), allow("c", 1, 5, "r")}, "false [c 1:5 r]"},
		{"allow all", []edits.Rule{allow("c", 1, 3, "rwm"), allow("a", every, every, "rwm"), allow("c", 1, 5, "r")}, "true []"},
		{"a denial before", []edits.Rule{deny("c", 1, 3, "r"), allow("c", 1, every, "r")}, "false [c 1:* r]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := reduceRules(tt.rules)
			if got := fmt.Sprint(l.all, " ", l.entries); err != nil || got != tt.want {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
}

func TestReduceRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules []edits.Rule
		want  string
	}{
		{"hole in all", []edits.Rule{allow("a", every, every, "rwm"), deny("c", 195, every, "rw")}, "deny c 195:* rw: it denies a part of \"allow all\""},
		{"hole in a major", []edits.Rule{allow("c", 195, every, "rw"), deny("c", 195, 1, "w")}, "deny c 195:1 w: it denies a part of the rule allow c 195:* rw"},
		{"crossing", []edits.Rule{allow("c", every, 1, "r"), deny("c", 195, every, "r")}, "deny c 195:* r: it denies a part of the rule allow c *:1 r"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := reduceRules(tt.rules); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if _, err := Compile(tt.rules); err != nil {
				t.Errorf("a program can say it: %v", err)
			}
		})
	}
}

// TestAmbiguousRulesAreRefused: ambiguous rules are refused by Compile and by reduceRules.
func TestAmbiguousRulesAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		rule edits.Rule
		want string
	}{
		{"type", allow("u", 1, 3, "r"), `allow u 1:3 r: type "u" is none of a, b and c`},
		{"access", allow("c", 1, 3, "rx"), `allow c 1:3 rx: access "rx" isn't made of r, w and m`},
		{"long access", allow("c", 1, 3, "rrrr"), `allow c 1:3 rrrr: access "rrrr" isn't made of r, w and m`},
		{"major", allow("c", 4096, 3, "r"), "allow c 4096:3 r: major 4096 is no device number"},
		{"minor", deny("c", 1, -2, "r"), "deny c 1:-2 r: minor -2 is no device number"},
		{"all of one major", allow("a", 1, every, "rwm"), "allow a 1:* rwm: runtimes read it as all devices, or as fewer"},
		{"reading of all", allow("", every, every, "r"), "allow a *:* r: runtimes read it as all devices, or as fewer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := []edits.Rule{denyAll(), tt.rule}
			_, list := reduceRules(rules)
			_, program := Compile(rules)
			for _, err := range []error{list, program} {
				if err == nil || err.Error() != tt.want {
					t.Errorf("got %v, want %s", err, tt.want)
				}
			}
		})
	}
}

func TestParseList(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       string
		err        string
	}{
		{"all", "a *:* rwm\n", "true []", ""},
		{"nothing", "", "false []", ""},
		{"entries", "c 1:3 rwm\nb *:* m\nc 136:* rw\n", "false [c 1:3 rwm b *:* m c 136:* rw]", ""},
		{"no fields", "c 1:3\n", "", `line "c 1:3\n" isn't type, numbers and access`},
		{"no number", "c x:3 r\n", "", `line "c x:3 r\n": strconv.ParseInt: parsing "x": invalid syntax`},
		{"no minor", "c 1 r\n", "", `line "c 1 r\n": strconv.ParseInt: parsing "": invalid syntax`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := parseList(tt.text)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v", err)
				}
				return
			}
			if got := fmt.Sprint(l.all, " ", l.entries); err != nil || got != tt.want {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
}
