package request

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// memory is a condition on a device's memory.
type memory struct {
	op     string // one of operators
	number uint64
	unit   string // "K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"
}

func (m memory) String() string {
	return "mem" + m.op + strconv.FormatUint(m.number, 10) + m.unit
}

func (m memory) compareTo(n memory) int {
	return cmp.Or(cmp.Compare(m.op, n.op), cmp.Compare(m.unit, n.unit), cmp.Compare(m.number, n.number))
}

// isCondition reports whether w is meant to be a condition: it compares something.
func isCondition(w string) bool {
	key, _, has := strings.Cut(w, "=")
	return strings.ContainsAny(w, "<>") || has && key != "count" && key != "device"
}

// maxAmount is the largest number of a condition, in whichever unit.
const maxAmount = 9_999_999

// parseMemory reads mem, an operator, a number up to maxAmount and a unit, lower case.
func parseMemory(w string) (memory, *parseError) {
	i := strings.IndexAny(w, "<>=")
	if key := strings.TrimSpace(w[:i]); key != "mem" && key != "memory" {
		return memory{}, parseErrorf("unknown condition %s; known: mem", spell.Quote(key, maxWord))
	}
	size := strings.TrimLeft(w[i:], "<>=")
	m := memory{op: w[i : len(w)-len(size)]}
	if !slices.Contains([]string{">=", ">", "<=", "<", "="}, m.op) {
		return memory{}, parseErrorf("unknown comparison %s; known: >=, >, <=, <, =", spell.Quote(m.op, maxWord))
	}
	size = strings.TrimSpace(size)
	unit := strings.TrimLeft(size, "0123456789")
	number, err := strconv.ParseUint(size[:len(size)-len(unit)], 10, 64)
	if err != nil || number > maxAmount {
		return memory{}, parseErrorf("%s isn't an amount of memory; one is 40G", spell.Quote(size, maxWord))
	}
	m.number = number
	if unit = strings.TrimSuffix(strings.TrimSpace(unit), "b"); unit == "" || !strings.Contains(" k m g t ki mi gi ti ", " "+unit+" ") {
		return memory{}, parseErrorf("%s needs a unit: K, M, G, T, Ki, Mi, Gi or Ti", spell.Quote(size, maxWord))
	}
	m.unit = strings.ToUpper(unit[:1]) + unit[1:]
	return m, nil
}

// byteBounds returns the smallest and largest memory, in bytes, of a card that is sold with this
// size.
func (m memory) byteBounds() (least, most uint64) {
	power := strings.IndexByte("KMGT", m.unit[0]) + 1
	least, most = m.number, m.number
	base := uint64(1000)
	if len(m.unit) == 2 {
		base = 1024
	}
	for range power {
		least, most = least*base, most*1024
	}
	return least - least/50, most
}

// isMetBy reports whether a device with that many bytes satisfies the condition. Of
// <, = and > exactly one holds.
func (m memory) isMetBy(bytes uint64) bool {
	least, most := m.byteBounds()
	switch m.op {
	case ">=":
		return bytes >= least
	case ">":
		return bytes > most
	case "<=":
		return bytes <= most
	case "<":
		return bytes < least
	}
	return bytes >= least && bytes <= most
}

// FitsMemory reports whether a device with that many bytes satisfies all conditions.
func (r Request) FitsMemory(bytes uint64) bool {
	for _, m := range r.mem {
		if m != (memory{}) && !m.isMetBy(bytes) {
			return false
		}
	}
	return true
}
