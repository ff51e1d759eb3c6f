package json

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

// table is what has to be known of a struct type.
type table struct {
	of     reflect.Type
	fields []field
	// plain: there is nothing about the type that only encoding/json knows.
	plain bool
}

// field is one member of the object that a struct stands for.
type field struct {
	name      string
	index     int
	omitEmpty bool
}

// maxFields is how many the decoder can tell apart, to find doubles.
const maxFields = 64

func (c *Codec) table(t reflect.Type) *table {
	for _, known := range c.structs {
		if known.of == t {
			return known
		}
	}
	made := newTable(t)
	c.structs = append(c.structs, made)
	return made
}

func newTable(t reflect.Type) *table {
	n := t.NumField()
	made := &table{of: t, fields: make([]field, 0, n), plain: n <= maxFields && !special(t)}
	for i := range n {
		f := t.Field(i)
		if f.Anonymous {
			made.plain = false
			return made
		}
		if !f.IsExported() || f.Tag.Get("json") == "-" {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		if !plainName(name) || made.find([]byte(name)) >= 0 || options != "" && options != "omitempty" {
			made.plain = false
		}
		made.fields = append(made.fields, field{name: name, index: i, omitEmpty: options == "omitempty"})
	}
	return made
}

// find returns the place of a field in the table, -1 if there is none of that name.
func (t *table) find(name []byte) int {
	for i := range t.fields {
		if t.fields[i].name == string(name) {
			return i
		}
	}
	return -1
}

// variant says that encoding/json could take the name for that of a field.
func (t *table) variant(name []byte) bool {
	for i := range t.fields {
		if strings.EqualFold(t.fields[i].name, string(name)) {
			return true
		}
	}
	return false
}

// plainName is one that JSON quotes as it is. (A name with a quote or a dollar sign
// means something else to encoding/json, or nothing.)
func plainName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}

// special says that a type that is no struct has a way of its own to be read or written.
func (c *Codec) special(t reflect.Type) bool {
	if t.PkgPath() == "" || slices.Contains(c.simple, t) {
		return false
	}
	if special(t) {
		return true
	}
	c.simple = append(c.simple, t)
	return false
}

// special says that a type has a way of its own to be read or written.
func special(t reflect.Type) bool {
	if t.PkgPath() == "" {
		return false // no type without a name has methods, but for embedded ones
	}
	p := reflect.PointerTo(t)
	for _, of := range []reflect.Type{
		reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[json.Marshaler](),
		reflect.TypeFor[encoding.TextUnmarshaler](), reflect.TypeFor[encoding.TextMarshaler](),
	} {
		if p.Implements(of) {
			return true
		}
	}
	return false
}

// isTime says that it is the one special type that is read and written here.
func isTime(t reflect.Type) bool { return t == reflect.TypeFor[time.Time]() }
