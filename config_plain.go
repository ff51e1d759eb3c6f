package berth

import (
	"bytes"
	"reflect"
	"unicode/utf8"
)

// plainConfig reads a configuration that is written plainly: tables, keys, strings
// without escapes, true and false, lists of strings on one line, and comments. Whatever
// else TOML has, and whatever is wrong, is false, and for a real parser, which takes a
// container's start longer to get ready than the file to be read. c is then of no use.
func plainConfig(data []byte, c *Config) bool {
	if !utf8.Valid(data) {
		return false
	}
	root := reflect.ValueOf(c).Elem()
	r := plainReader{root: root, table: root, seen: map[string]bool{}}
	for line := range bytes.Lines(data) {
		if !r.line(bytes.TrimSuffix(line, []byte("\n"))) {
			return false
		}
	}
	return true
}

// plainReader reads lines.
type plainReader struct {
	root, table reflect.Value
	name        string // of the table
	seen        map[string]bool
	rest        []byte // of the line
}

func (r *plainReader) line(text []byte) bool {
	for _, b := range text {
		if b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	r.rest = text
	r.blank()
	switch {
	case r.ended():
		return true
	case r.is('['):
		return r.header()
	}
	key := r.word()
	r.blank()
	if key == "" || r.twice(r.name+"."+key) || !r.is('=') {
		return false
	}
	r.blank()
	to, ok := member(r.table, key)
	return ok && r.value(to) && r.ended()
}

func (r *plainReader) header() bool {
	r.name = r.word()
	if r.name == "" || r.twice(r.name) || !r.is(']') || !r.ended() {
		return false
	}
	var ok bool
	r.table, ok = member(r.root, r.name)
	return ok && r.table.Kind() == reflect.Struct
}

func (r *plainReader) value(to reflect.Value) bool {
	switch at := to.Addr().Interface().(type) {
	case *string:
		return r.text(at)
	case *bool:
		return r.truth(at)
	case **bool:
		*at = new(bool)
		return r.truth(*at)
	case *[]string:
		return r.list(at)
	}
	return false
}

func (r *plainReader) text(to *string) bool {
	if !r.is('"') {
		return false
	}
	end := bytes.IndexByte(r.rest, '"')
	if end < 0 || bytes.IndexByte(r.rest[:end], '\\') >= 0 {
		return false
	}
	*to, r.rest = string(r.rest[:end]), r.rest[end+1:]
	return true
}

func (r *plainReader) truth(to *bool) bool {
	word := r.word()
	*to = word == "true"
	return *to || word == "false"
}

func (r *plainReader) list(to *[]string) bool {
	*to = []string{}
	if !r.is('[') {
		return false
	}
	for r.blank(); !r.is(']'); r.blank() {
		var s string
		if !r.text(&s) {
			return false
		}
		*to = append(*to, s)
		r.blank()
		if !r.is(',') && !bytes.HasPrefix(r.rest, []byte{']'}) {
			return false
		}
	}
	return true
}

// is moves over a byte if it is the next one.
func (r *plainReader) is(b byte) bool {
	if len(r.rest) == 0 || r.rest[0] != b {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

func (r *plainReader) blank() { r.rest = bytes.TrimLeft(r.rest, " \t") }

// ended says that nothing but a comment follows.
func (r *plainReader) ended() bool {
	r.blank()
	return len(r.rest) == 0 || r.rest[0] == '#'
}

// word takes lower-case letters and underscores, which all our keys are made of.
func (r *plainReader) word() string {
	n := 0
	for n < len(r.rest) && (r.rest[n] >= 'a' && r.rest[n] <= 'z' || r.rest[n] == '_') {
		n++
	}
	word := string(r.rest[:n])
	r.rest = r.rest[n:]
	return word
}

func (r *plainReader) twice(name string) bool {
	before := r.seen[name]
	r.seen[name] = true
	return before
}

// member is the field of a struct that a key of TOML is for.
func member(of reflect.Value, key string) (reflect.Value, bool) {
	t := of.Type()
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("toml") == key && f.IsExported() {
			return of.Field(i), true
		}
	}
	return reflect.Value{}, false
}
