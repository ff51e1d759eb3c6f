package json

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

// structInfo describes a struct type.
type structInfo struct {
	of     reflect.Type
	fields []field
	// plain means that values of the type can be handled without encoding/json.
	plain bool
}

// field is a field of a struct that is a member of the JSON object.
type field struct {
	name      string // of the member
	index     int
	omitEmpty bool
}

// maxFields is the number of fields for which the decoder can detect repeated keys.
const maxFields = 64

func (c *Codec) structInfo(t reflect.Type) *structInfo {
	for _, known := range c.structs {
		if known.of == t {
			return known
		}
	}
	made := newStructInfo(t)
	c.structs = append(c.structs, made)
	return made
}

func newStructInfo(t reflect.Type) *structInfo {
	n := t.NumField()
	made := &structInfo{of: t, fields: make([]field, 0, n), plain: n <= maxFields && !hasJSONMethods(t)}
	for i := range n {
		f := t.Field(i)
		if f.Anonymous {
			made.plain = false
			return made
		}
		tag := f.Tag.Get("json")
		if !f.IsExported() || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if name == "" {
			name = f.Name
		}
		if !isPlainName(name) || made.findField([]byte(name), 0) >= 0 || options != "" && options != "omitempty" {
			made.plain = false
		}
		made.fields = append(made.fields, field{name: name, index: i, omitEmpty: options == "omitempty"})
	}
	return made
}

// findField returns the index in t.fields, -1 if no field has exactly that name. It looks at
// the field at index guess first, for members usually come in the order of the fields.
func (t *structInfo) findField(name []byte, guess int) int {
	if guess < len(t.fields) && t.fields[guess].name == string(name) {
		return guess
	}
	for i := range t.fields {
		if t.fields[i].name == string(name) {
			return i
		}
	}
	return -1
}

// matchesFold reports whether encoding/json, which ignores case, takes the name for a field's.
func (t *structInfo) matchesFold(name []byte) bool {
	for i := range t.fields {
		if strings.EqualFold(t.fields[i].name, string(name)) {
			return true
		}
	}
	return false
}

// isPlainName reports whether a name in a tag needs no escapes and is used by encoding/json unchanged. encoding/json
// ignores or interprets other names.
func isPlainName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}

// hasJSONMethods is the function of that name with a cache, for types other than structs.
func (c *Codec) hasJSONMethods(t reflect.Type) bool {
	if t.PkgPath() == "" || slices.Contains(c.plain, t) {
		return false
	}
	if hasJSONMethods(t) {
		return true
	}
	c.plain = append(c.plain, t)
	return false
}

// hasJSONMethods reports whether the type, or a pointer to it, reads or writes itself.
func hasJSONMethods(t reflect.Type) bool {
	if t.PkgPath() == "" {
		return false // unnamed types have methods only by embedding
	}
	p := reflect.PointerTo(t)
	if p.NumMethod() == 0 {
		return false
	}
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

// isTime reports whether t is time.Time, the only type with JSON methods that the codec handles.
func isTime(t reflect.Type) bool { return t == reflect.TypeFor[time.Time]() }
