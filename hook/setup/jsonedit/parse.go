package jsonedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// document is a text with the places of its objects' members.
type document struct {
	text []byte
	root node
	// newline is how lines end, unit one step of indentation, colon what stands
	// between a key and its value.
	newline, unit, colon string
	// lines says that values stand on lines of their own.
	lines bool
}

// node is a value between two offsets.
type node struct {
	start, end int
	object     bool
	members    []member
}

type member struct {
	key              string
	keyStart, keyEnd int
	value            node
}

const mark = "\ufeff"

func parse(text []byte) (document, error) {
	body := bytes.TrimPrefix(text, []byte(mark))
	skipped := len(text) - len(body)
	doc := document{text: text}
	if bytes.HasPrefix(text, []byte{0xfe, 0xff}) || bytes.HasPrefix(text, []byte{0xff, 0xfe}) {
		return doc, doc.wrong(0, "the text is UTF-16, not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return doc, doc.syntax(err, skipped)
	}
	s := scanner{text: text, at: skipped}
	s.space()
	if text[s.at] != '{' {
		return doc, doc.wrong(s.at, "the text is no JSON object")
	}
	doc.root = s.value()
	doc.learn()
	return doc, nil
}

// syntax places an error of the decoder, which counts the bytes that it has read.
func (d document) syntax(err error, skipped int) error {
	var wrong *json.SyntaxError
	if !errors.As(err, &wrong) {
		return err
	}
	at := int(wrong.Offset) - 1
	if strings.HasPrefix(wrong.Error(), "unexpected end") {
		at = int(wrong.Offset)
	}
	return d.wrong(skipped+max(at, 0), "%s", wrong.Error())
}

func (d document) wrong(offset int, format string, values ...any) error {
	line, column := where(d.text, offset)
	return &Error{line, column, fmt.Sprintf(format, values...)}
}

// member finds a key in an object; nil if it isn't there. Of a key that is there twice
// parsers take one or the other, or both.
func (d document) member(n node, key string) (found *member, err error) {
	for i := range n.members {
		if n.members[i].key != key {
			continue
		}
		if found != nil {
			return nil, d.wrong(n.members[i].keyStart, "the key %q is there twice", key)
		}
		found = &n.members[i]
	}
	return found, nil
}

// learn looks how the text is written.
func (d *document) learn() {
	d.newline, d.unit, d.colon = "\n", "  ", ": "
	if bytes.Contains(d.text, []byte("\r\n")) {
		d.newline = "\r\n"
	}
	members := d.root.members
	// An object of nothing, and no text, is written on lines.
	d.lines = len(members) == 0 || bytes.ContainsAny(d.text[d.root.start:d.root.end], "\n")
	if len(members) == 0 {
		return
	}
	first := members[0]
	if d.multiline(d.root) {
		if indent := d.lineIndent(first.keyStart); indent != "" {
			d.unit = indent
		}
	}
	if colon := string(d.text[first.keyEnd:first.value.start]); !strings.ContainsAny(colon, "\r\n") {
		d.colon = colon
	}
}

// scanner reads a text that is known to be valid.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) && bytes.IndexByte([]byte(" \t\r\n"), s.text[s.at]) >= 0 {
		s.at++
	}
}

func (s *scanner) value() node {
	n := node{start: s.at}
	switch s.text[s.at] {
	case '{':
		n.object = true
		n.members = s.members()
	case '[':
		s.elements()
	case '"':
		s.quoted()
	default:
		for s.at < len(s.text) && bytes.IndexByte([]byte(" \t\r\n,]}"), s.text[s.at]) < 0 {
			s.at++
		}
	}
	n.end = s.at
	return n
}

// quoted passes over a string.
func (s *scanner) quoted() {
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

func (s *scanner) members() (all []member) {
	s.at++
	for s.space(); s.text[s.at] != '}'; s.space() {
		if s.text[s.at] == ',' {
			s.at++
			continue
		}
		m := member{keyStart: s.at}
		s.quoted()
		m.keyEnd = s.at
		_ = json.Unmarshal(s.text[m.keyStart:m.keyEnd], &m.key) // it is valid
		s.space()
		s.at++ // the colon
		s.space()
		m.value = s.value()
		all = append(all, m)
	}
	s.at++
	return all
}

func (s *scanner) elements() {
	s.at++
	for s.space(); s.text[s.at] != ']'; s.space() {
		if s.text[s.at] == ',' {
			s.at++
			continue
		}
		s.value()
	}
	s.at++
}
