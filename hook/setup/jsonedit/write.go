package jsonedit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// insert adds a member behind the last one of an object.
func (d document) insert(n node, m Member) ([]byte, error) {
	if len(n.members) == 0 {
		return d.fill(n, m)
	}
	last := n.members[len(n.members)-1]
	if d.multiline(n) {
		indent := d.lineIndent(n.members[0].keyStart)
		word, err := d.pair(m, indent, true)
		return splice(d.text, last.value.end, last.value.end, ","+d.newline+indent+word), err
	}
	word, err := d.pair(m, "", false)
	return splice(d.text, last.value.end, last.value.end, ","+d.gap(n)+word), err
}

// fill gives an object without members its first one.
func (d document) fill(n node, m Member) ([]byte, error) {
	outer := d.lineIndent(n.start)
	if !d.lines {
		word, err := d.pair(m, "", false)
		return splice(d.text, n.start, n.end, "{"+word+"}"), err
	}
	indent := outer + d.unit
	word, err := d.pair(m, indent, true)
	return splice(d.text, n.start, n.end, "{"+d.newline+indent+word+d.newline+outer+"}"), err
}

// gap is what stands behind a comma of an object on one line.
func (d document) gap(n node) string {
	if len(n.members) > 1 {
		between := string(d.text[n.members[0].value.end:n.members[1].keyStart])
		if _, after, ok := strings.Cut(between, ","); ok && !strings.ContainsAny(after, "\r\n") {
			return after
		}
	}
	if strings.HasSuffix(d.colon, " ") {
		return " "
	}
	return ""
}

func (d document) pair(m Member, indent string, lines bool) (string, error) {
	key, err := marshal(m.Key)
	if err != nil {
		return "", err
	}
	value, err := d.render(m.Value, indent, lines)
	return key + d.colon + value, err
}

// render writes a value whose first line is indented so far.
func (d document) render(value any, indent string, lines bool) (string, error) {
	switch v := value.(type) {
	case Raw:
		return string(v), nil
	case Object:
		return d.object(v, indent, lines)
	}
	return marshal(value)
}

func (d document) object(o Object, indent string, lines bool) (string, error) {
	if len(o) == 0 {
		return "{}", nil
	}
	open, between, end := "{", ",", "}"
	if strings.HasSuffix(d.colon, " ") {
		between = ", "
	}
	if lines {
		inner := d.newline + indent + d.unit
		open, between, end = "{"+inner, ","+inner, d.newline+indent+"}"
	}
	var words []string
	for _, m := range o {
		word, err := d.pair(m, indent+d.unit, lines)
		if err != nil {
			return "", err
		}
		words = append(words, word)
	}
	return open + strings.Join(words, between) + end, nil
}

func marshal(value any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return "", fmt.Errorf("write JSON: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// extent is what goes with a member: its comma, and the space between it and its
// neighbour.
func (d document) extent(n node, m *member) (from, to int) {
	for i := range n.members {
		if n.members[i].keyStart != m.keyStart {
			continue
		}
		switch {
		case i > 0:
			return n.members[i-1].value.end, m.value.end
		case len(n.members) > 1:
			return m.keyStart, n.members[1].keyStart
		}
	}
	return n.start + 1, n.end - 1
}

// multiline says that an object's members begin on lines of their own.
func (d document) multiline(n node) bool {
	if len(n.members) == 0 {
		return d.lines
	}
	return bytes.ContainsRune(d.text[n.start:n.members[0].keyStart], '\n')
}

// lineIndent is the white space that the line of an offset begins with.
func (d document) lineIndent(offset int) string {
	start := bytes.LastIndexByte(d.text[:offset], '\n') + 1
	line := d.text[start:offset]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}
