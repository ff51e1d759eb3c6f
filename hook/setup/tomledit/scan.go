package tomledit

import (
	"bytes"
	"slices"
	"strings"
)

// statement is a table's header, or a key with its value, with the lines that it has for
// itself: [start, end).
type statement struct {
	start, end int
	// table is that of the header, or in which the key stands.
	table []string
	// array says that the table is one of an array of them.
	array bool
	// key is nil in a header.
	key             []string
	value, valueEnd int
}

// find is the statement of a key, nil if there is none.
func find(all []statement, path []string) *statement {
	for i, s := range all {
		if !s.array && s.key != nil && slices.Equal(append(slices.Clone(s.table), s.key...), path) {
			return &all[i]
		}
	}
	return nil
}

// header is the place of a table's header, or -1.
func header(all []statement, path []string) int {
	return slices.IndexFunc(all, func(s statement) bool { return !s.array && s.key == nil && slices.Equal(s.table, path) })
}

// defined says that a table is made by dotted keys, or is within an inline table: then it
// can have no header as well.
func defined(text []byte, all []statement, table []string) bool {
	return slices.ContainsFunc(all, func(s statement) bool {
		whole := append(slices.Clone(s.table), s.key...)
		switch {
		case s.key == nil:
			return false
		case text[s.value] == '{':
			return len(whole) <= len(table) && slices.Equal(table[:len(whole)], whole)
		}
		return len(table) > len(s.table) && len(table) < len(whole) && slices.Equal(whole[:len(table)], table)
	})
}

// place writes a value where its key is, or to where its table is, or at the end.
func place(text []byte, all []statement, value Raw, path []string) []byte {
	if s := find(all, path); s != nil {
		return slices.Concat(text[:s.value], []byte(value), text[s.valueEnd:])
	}
	newline := "\n"
	if bytes.Contains(text, []byte("\r\n")) {
		newline = "\r\n"
	}
	table, last := path[:len(path)-1], path[len(path)-1]
	line := Key(last) + " = " + string(value) + newline
	i := header(all, table)
	if i < 0 && len(table) > 0 {
		return appendTable(text, newline, "["+Key(table...)+"]"+newline+line)
	}
	end, indent := 0, ""
	if i >= 0 {
		end, indent = all[i].end, indentation(text, all[i].start)+step(text, all)
	}
	for _, s := range all[i+1:] {
		if s.key == nil {
			break
		}
		end, indent = s.end, indentation(text, s.start)
	}
	if end == 0 { // a file without keys of its own: they come before all tables
		end = len(text)
		if len(all) > 0 {
			end = all[0].start
		}
	}
	lead := ""
	if end > 0 && text[end-1] != '\n' {
		lead = newline
	}
	return slices.Concat(text[:end], []byte(lead+indent+line), text[end:])
}

func appendTable(text []byte, newline, table string) []byte {
	switch {
	case len(text) == 0:
	case text[len(text)-1] != '\n':
		table = newline + newline + table
	default:
		table = newline + table
	}
	return slices.Concat(text, []byte(table))
}

// step is how much deeper keys stand than the header above them.
func step(text []byte, all []statement) string {
	for i := 1; i < len(all); i++ {
		if all[i].key != nil && all[i-1].key == nil {
			return strings.TrimPrefix(indentation(text, all[i].start), indentation(text, all[i-1].start))
		}
	}
	return ""
}

// indentation is the white space that a line begins with.
func indentation(text []byte, start int) string {
	rest := text[start:]
	return string(rest[:len(rest)-len(bytes.TrimLeft(rest, " \t"))])
}

// scan finds the statements of a text that is known to be valid.
func scan(text []byte) (all []statement) {
	s := scanner{text: text}
	var table []string
	var array bool
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		s.at = len("\ufeff")
	}
	for s.at < len(text) {
		st := statement{start: s.at}
		s.blank()
		switch s.peek() {
		case '\n', '#', 0:
			s.line()
			continue
		case '[':
			s.at++
			if array = s.peek() == '['; array {
				s.at++
			}
			table = s.key(']')
			s.line()
			st.table, st.array = table, array || st.array
		default:
			st.key = s.key('=')
			s.at++
			s.blank()
			st.value = s.at
			s.whole()
			st.valueEnd = s.at
			s.line()
			st.table, st.array = table, array
		}
		st.end = s.at
		all = append(all, st)
	}
	return all
}

type scanner struct {
	text []byte
	at   int
}

// peek is the next byte, 0 at the end. A carriage return is one before a line's end.
func (s *scanner) peek() byte {
	switch {
	case s.at >= len(s.text):
		return 0
	case s.text[s.at] == '\r':
		return '\n'
	}
	return s.text[s.at]
}

func (s *scanner) blank() {
	for c := s.peek(); c == ' ' || c == '\t'; c = s.peek() {
		s.at++
	}
}

// line goes to the next line.
func (s *scanner) line() {
	if n := bytes.IndexByte(s.text[s.at:], '\n'); n >= 0 {
		s.at += n + 1
		return
	}
	s.at = len(s.text)
}

// key reads a key with its dots, up to what ends it.
func (s *scanner) key(end byte) (path []string) {
	for {
		s.blank()
		from := s.at
		switch c := s.peek(); c {
		case end, 0, '\n':
			return path
		case '.':
			s.at++
		case '"', '\'':
			s.quoted()
			path = append(path, unquote(s.text[from:s.at]))
		default:
			for c := s.peek(); c != end && c != '.' && c != ' ' && c != '\t' && c != '\n' && c != 0; c = s.peek() {
				s.at++
			}
			path = append(path, string(s.text[from:s.at]))
		}
	}
}

func unquote(word []byte) string {
	values, err := Decode(append([]byte("v = "), word...))
	if text, is := values["v"].(string); err == nil && is {
		return text
	}
	return string(word)
}

// quoted passes over a string of any of the four kinds.
func (s *scanner) quoted() {
	quote := s.text[s.at : s.at+1]
	mark := bytes.Repeat(quote, 3)
	if !bytes.HasPrefix(s.text[s.at:], mark) {
		mark = quote
	}
	for s.at += len(mark); s.at < len(s.text) && !bytes.HasPrefix(s.text[s.at:], mark); s.at++ {
		if quote[0] == '"' && s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at = min(s.at+len(mark), len(s.text))
	for len(mark) == 3 && s.at < len(s.text) && s.text[s.at] == quote[0] {
		s.at++ // quotes before the last three are part of the string
	}
}

// whole passes over a value, to its last character.
func (s *scanner) whole() {
	depth, end := 0, s.at
	for s.at < len(s.text) {
		switch c := s.peek(); {
		case c == '"' || c == '\'':
			s.quoted()
			end = s.at
			continue
		case c == '#' && depth == 0, c == '\n' && depth == 0:
			s.at = end
			return
		case c == '#':
			s.line()
			continue
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
		s.at++
		if c := s.text[s.at-1]; c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			end = s.at
		}
	}
	s.at = end
}
