package json

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// encoder writes what encoding/json would write. What it returns false for is left
// to that.
type encoder struct {
	codec *Codec
	b     []byte
}

func (e *encoder) value(v reflect.Value) bool {
	if !v.IsValid() {
		return false
	}
	t := v.Type()
	if isTime(t) {
		return e.time(v)
	}
	kind := t.Kind()
	if kind != reflect.Struct && kind != reflect.Pointer && e.codec.special(t) {
		return false
	}
	switch kind {
	case reflect.Struct:
		return e.object(v)
	case reflect.Slice:
		return e.list(v)
	case reflect.Map:
		return e.dict(v)
	case reflect.Pointer:
		if v.IsNil() {
			e.b = append(e.b, "null"...)
			return true
		}
		return e.value(v.Elem())
	case reflect.String:
		return e.text(v.String())
	case reflect.Bool:
		e.b = strconv.AppendBool(e.b, v.Bool())
		return true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.b = strconv.AppendInt(e.b, v.Int(), 10)
		return true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.b = strconv.AppendUint(e.b, v.Uint(), 10)
		return true
	}
	return false
}

func (e *encoder) object(v reflect.Value) bool {
	t := e.codec.table(v.Type())
	if !t.plain {
		return false
	}
	e.b = append(e.b, '{')
	first := true
	for _, f := range t.fields {
		member := v.Field(f.index)
		if f.omitEmpty && empty(member) {
			continue
		}
		if !first {
			e.b = append(e.b, ',')
		}
		first = false
		e.b = append(append(append(e.b, '"'), f.name...), `":`...)
		if !e.value(member) {
			return false
		}
	}
	e.b = append(e.b, '}')
	return true
}

func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func (e *encoder) list(v reflect.Value) bool {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return false // bytes are another thing
	}
	if v.IsNil() {
		e.b = append(e.b, "null"...)
		return true
	}
	e.b = append(e.b, '[')
	for i := range v.Len() {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		if !e.value(v.Index(i)) {
			return false
		}
	}
	e.b = append(e.b, ']')
	return true
}

func (e *encoder) dict(v reflect.Value) bool {
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
	e.b = append(e.b, '{')
	for i, key := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		if !e.text(key) {
			return false
		}
		e.b = append(e.b, ':')
		if !e.value(members[key]) {
			return false
		}
	}
	e.b = append(e.b, '}')
	return true
}

func (e *encoder) text(s string) bool {
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

func (e *encoder) time(v reflect.Value) bool {
	at, ok := v.Interface().(time.Time)
	if !ok {
		return false
	}
	b, err := at.MarshalJSON()
	e.b = append(e.b, b...)
	return err == nil
}
