package tomledit

import (
	"bytes"
	"strings"
)

// Append adds a string to a list, which is written as it was: on lines of their own, or on
// one. An empty text is a list of nothing.
func Append(list Raw, word string) Raw {
	text, one := []byte(list), quote(word)
	end, comma := last(text)
	if end == 0 {
		return Raw("[" + one + "]")
	}
	closing := len(text) - 1
	line := bytes.LastIndexByte(text[:closing], '\n') + 1
	if line <= end {
		return Raw(string(text[:end]) + ", " + one + string(text[end:]))
	}
	after := ""
	if comma {
		after = ","
	}
	newline := "\n"
	if bytes.Contains(text, []byte("\r\n")) {
		newline = "\r\n"
	}
	first := bytes.LastIndexByte(text[:end], '\n') + 1
	indent := indentation(text, first)
	if first == 0 {
		indent = "  "
	}
	head := string(text[:end])
	if !comma {
		head += ","
	}
	return Raw(head + string(text[end:line]) + indent + one + after + newline + string(text[line:]))
}

// last is where the last value of a list ends, 0 if there is none, and whether a comma
// stands behind it.
func last(list []byte) (end int, comma bool) {
	if len(list) == 0 {
		return 0, false
	}
	s := scanner{text: list[:len(list)-1], at: 1}
	for s.at < len(s.text) {
		switch c := s.peek(); c {
		case ' ', '\t', '\n':
			s.at++
		case '#':
			s.line()
		case ',':
			s.at++
			comma = true
		default:
			s.element()
			end, comma = s.at, false
		}
	}
	return end, comma
}

// element passes over a value of a list.
func (s *scanner) element() {
	for depth := 0; s.at < len(s.text); {
		switch c := s.peek(); {
		case c == '"' || c == '\'':
			s.quoted()
			continue
		case depth == 0 && strings.IndexByte(", \t\n#", c) >= 0:
			return
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
		s.at++
	}
}
