package ldcache

import (
	"encoding/binary"
	"slices"
)

// Bytes returns the file. It is deterministic, and Parse reads the same cache
// from it as long as the limits of Parse are kept.
func (c Cache) Bytes() []byte {
	tableEnd := header + len(c.Entries)*entry
	strings, at := c.stringTable(tableEnd)
	extensions := 0
	if c.Generator != "" || len(c.HWCaps) > 0 {
		extensions = (tableEnd + len(strings) + 3) &^ 3
	}

	file := make([]byte, 0, tableEnd+len(strings)+len(c.Generator)+4*len(c.HWCaps)+64)
	file = append(file, magic...)
	file = appendUint32(file, len(c.Entries), len(strings), littleFlag, extensions, 0, 0, 0)
	for _, e := range c.Entries {
		file = appendUint32(file, int(e.Flags), at[e.Name], at[e.Path], int(e.OSVersion))
		file = binary.LittleEndian.AppendUint64(file, e.HWCap)
	}
	file = append(file, strings...)
	if extensions == 0 {
		return file
	}
	return c.appendExtensions(append(file, make([]byte, extensions-len(file))...), at)
}

// appendUint32 appends numbers of four bytes.
func appendUint32(file []byte, numbers ...int) []byte {
	for _, n := range numbers {
		file = binary.LittleEndian.AppendUint32(file, uint32(n))
	}
	return file
}

// appendExtensions appends the directory, then the sections' data; as ldconfig
// does, the generator is first there and last here.
func (c Cache) appendExtensions(file []byte, at map[string]int) []byte {
	sections := 0
	for _, has := range []bool{c.Generator != "", len(c.HWCaps) > 0} {
		if has {
			sections++
		}
	}
	data := len(file) + extensionHeader + sections*section
	file = appendUint32(file, extensionMagic, sections)
	if c.Generator != "" {
		file = appendUint32(file, tagGenerator, 0, data+4*len(c.HWCaps), len(c.Generator))
	}
	if len(c.HWCaps) > 0 {
		file = appendUint32(file, tagHWCaps, 0, data, 4*len(c.HWCaps))
	}
	for _, name := range c.HWCaps {
		file = appendUint32(file, at[name])
	}
	return append(file, c.Generator...)
}

// stringTable returns the table of strings, which will lie at base, and where each
// string is. A string that ends another one is stored within it, and the order
// is that of ldconfig, so that an unchanged cache stays the same file.
func (c Cache) stringTable(base int) (table []byte, at map[string]int) {
	at = make(map[string]int, 2*len(c.Entries)+len(c.HWCaps))
	for _, e := range c.Entries {
		at[e.Name], at[e.Path] = 0, 0
	}
	for _, name := range c.HWCaps {
		at[name] = 0
	}
	all := make([]string, 0, len(at))
	for s := range at {
		all = append(all, s)
	}
	slices.SortFunc(all, compareEnds)
	previous := ""
	for i, s := range all {
		if i > 0 && hasSuffix(previous, s) {
			at[s] = base + len(table) - 1 - len(s)
			continue
		}
		at[s] = base + len(table)
		table = append(append(table, s...), 0)
		previous = s
	}
	return table, at
}

func hasSuffix(s, end string) bool {
	return len(s) >= len(end) && s[len(s)-len(end):] == end
}

// compareEnds orders strings by their last bytes first, descending, so that a
// string comes right after those that it is the end of.
func compareEnds(a, b string) int {
	for i := 1; i <= min(len(a), len(b)); i++ {
		if x, y := a[len(a)-i], b[len(b)-i]; x != y {
			return int(y) - int(x)
		}
	}
	return len(b) - len(a)
}
