package json

import (
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// indent is the indent of one level.
const indent = "  "

// encoder appends the output of encoding/json to b. A method that returns false has found something that encoding/json
// has to handle; b is then discarded.
type encoder struct {
	codec *Codec
	b     []byte
	// lines puts each element and member on a line of its own, which begins with prefix and an indent for each level.
	lines  bool
	prefix string
	level  int
}

func (e *encoder) encode(v any) bool {
	e.codec.mu.Lock()
	defer e.codec.mu.Unlock()
	return e.appendValue(reflect.ValueOf(v))
}

func (e *encoder) appendValue(v reflect.Value) bool {
	if !v.IsValid() {
		return false
	}
	t := v.Type()
	if isTime(t) {
		return e.appendTime(v)
	}
	kind := t.Kind()
	if kind != reflect.Struct && kind != reflect.Pointer && e.codec.hasJSONMethods(t) {
		return false
	}
	switch kind {
	case reflect.Struct:
		return e.appendStruct(v)
	case reflect.Slice:
		return e.appendSlice(v)
	case reflect.Map:
		return e.appendMap(v)
	case reflect.Pointer:
		if v.IsNil() {
			e.b = append(e.b, "null"...)
			return true
		}
		return e.appendValue(v.Elem())
	case reflect.String:
		return e.appendString(v.String())
	case reflect.Bool:
		e.b = strconv.AppendBool(e.b, v.Bool())
		return true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.b = strconv.AppendInt(e.b, v.Int(), 10)
		return true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.b = strconv.AppendUint(e.b, v.Uint(), 10)
		return true
	case reflect.Float64:
		return e.appendFloat(v.Float())
	}
	return false
}

// openBracket begins an object or a list.
func (e *encoder) openBracket(bracket byte) {
	e.b = append(e.b, bracket)
	e.level++
}

// beginElement begins a member or an element.
func (e *encoder) beginElement(first bool) {
	if !first {
		e.b = append(e.b, ',')
	}
	e.newLine()
}

// closeBracket ends an object or a list.
func (e *encoder) closeBracket(bracket byte, empty bool) {
	e.level--
	if !empty {
		e.newLine()
	}
	e.b = append(e.b, bracket)
}

func (e *encoder) newLine() {
	if !e.lines {
		return
	}
	e.b = append(append(e.b, '\n'), e.prefix...)
	for range e.level {
		e.b = append(e.b, indent...)
	}
}

func (e *encoder) appendColon() {
	e.b = append(e.b, ':')
	if e.lines {
		e.b = append(e.b, ' ')
	}
}

func (e *encoder) appendStruct(v reflect.Value) bool {
	t := e.codec.structInfo(v.Type())
	if !t.plain {
		return false
	}
	e.openBracket('{')
	first := true
	for _, f := range t.fields {
		member := v.Field(f.index)
		if f.omitEmpty && isEmpty(member) {
			continue
		}
		e.beginElement(first)
		first = false
		e.b = append(append(append(e.b, '"'), f.name...), '"')
		e.appendColon()
		if !e.appendValue(member) {
			return false
		}
	}
	e.closeBracket('}', first)
	return true
}

// isEmpty reports whether omitempty omits a value.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func (e *encoder) appendSlice(v reflect.Value) bool {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return false // encoding/json writes base64
	}
	if v.IsNil() {
		e.b = append(e.b, "null"...)
		return true
	}
	e.openBracket('[')
	for i := range v.Len() {
		e.beginElement(i == 0)
		if !e.appendValue(v.Index(i)) {
			return false
		}
	}
	e.closeBracket(']', v.Len() == 0)
	return true
}

func (e *encoder) appendMap(v reflect.Value) bool {
	t := v.Type()
	if t.Key() != reflect.TypeFor[string]() {
		return false
	}
	if v.IsNil() {
		e.b = append(e.b, "null"...)
		return true
	}
	members := make(map[string]reflect.Value, v.Len())
	for each := v.MapRange(); each.Next(); {
		members[each.Key().String()] = each.Value()
	}
	e.openBracket('{')
	for i, key := range slices.Sorted(maps.Keys(members)) {
		e.beginElement(i == 0)
		if !e.appendString(key) {
			return false
		}
		e.appendColon()
		if !e.appendValue(members[key]) {
			return false
		}
	}
	e.closeBracket('}', len(members) == 0)
	return true
}

// appendString leaves strings with escapes to encoding/json, which escapes for HTML too.
func (e *encoder) appendString(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			b, err := json.Marshal(s)
			e.b = append(e.b, b...)
			return err == nil
		}
	}
	e.b = append(append(append(e.b, '"'), s...), '"')
	return true
}

// appendFloat returns false for numbers that encoding/json writes with an exponent.
func (e *encoder) appendFloat(f float64) bool {
	size := math.Abs(f)
	if size != 0 && (size < 1e-6 || size >= 1e21) || math.IsNaN(f) {
		return false
	}
	e.b = strconv.AppendFloat(e.b, f, 'f', -1, 64)
	return true
}

func (e *encoder) appendTime(v reflect.Value) bool {
	at, ok := v.Interface().(time.Time)
	if !ok {
		return false
	}
	b, err := at.MarshalJSON()
	e.b = append(e.b, b...)
	return err == nil
}
