package json

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"
)

// decoder stands at an index of a text. What it returns false for is left to
// encoding/json.
type decoder struct {
	codec *Codec
	s     []byte
	i     int
}

func (c *Codec) decode(data []byte, to reflect.Value) bool {
	d := decoder{codec: c, s: data}
	d.space()
	if !d.value(to) {
		return false
	}
	d.space()
	return d.i == len(d.s)
}

func (d *decoder) space() { d.i = skipSpace(d.s, d.i) }

// is moves over a byte if it is the next one.
func (d *decoder) is(c byte) bool {
	if d.i < len(d.s) && d.s[d.i] == c {
		d.i++
		return true
	}
	return false
}

func (d *decoder) word(w string) bool {
	if len(d.s)-d.i >= len(w) && string(d.s[d.i:d.i+len(w)]) == w {
		d.i += len(w)
		return true
	}
	return false
}

func (d *decoder) value(to reflect.Value) bool {
	t := to.Type()
	if isTime(t) {
		return d.time(to)
	}
	kind := t.Kind()
	if kind != reflect.Struct && d.codec.special(t) {
		return false
	}
	if d.word("null") {
		return null(to, kind)
	}
	switch kind {
	case reflect.Struct:
		return d.object(to)
	case reflect.Slice:
		return d.list(to)
	case reflect.Map:
		return d.dict(to)
	case reflect.Pointer:
		to.Set(reflect.New(t.Elem()))
		return d.value(to.Elem())
	case reflect.String:
		s, ok := d.text()
		to.SetString(s)
		return ok
	case reflect.Bool:
		if d.word("true") {
			to.SetBool(true)
			return true
		}
		return d.word("false")
	}
	return d.number(to, kind)
}

// null leaves what can't be nil as it is. It is said of fresh values only.
func null(to reflect.Value, kind reflect.Kind) bool {
	switch kind {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		to.SetZero()
	case reflect.Interface, reflect.Func, reflect.Chan:
		return false
	}
	return true
}

// deepest is how many values may be nested in one of no concern; encoding/json counts
// those around it, too.
const deepest = 100

func (d *decoder) object(to reflect.Value) bool {
	t := d.codec.table(to.Type())
	if !t.plain {
		return false
	}
	seen := uint64(0)
	return d.members(func(key []byte) bool {
		i := t.find(key)
		if i < 0 {
			if t.variant(key) {
				return false
			}
			d.i = scanValue(d.s, d.i, maxDepth-deepest)
			return d.i >= 0
		}
		if seen&(1<<i) != 0 {
			return false
		}
		seen |= 1 << i
		return d.value(to.Field(t.fields[i].index))
	})
}

// members calls read for each member of an object, at its value.
func (d *decoder) members(read func(key []byte) bool) bool {
	if !d.is('{') {
		return false
	}
	d.space()
	if d.is('}') {
		return true
	}
	for {
		key, plain, ok := d.token()
		if !ok || !plain {
			return false
		}
		d.space()
		if !d.is(':') {
			return false
		}
		d.space()
		if !read(key) {
			return false
		}
		d.space()
		if d.is('}') {
			return true
		}
		if !d.is(',') {
			return false
		}
		d.space()
	}
}

func (d *decoder) list(to reflect.Value) bool {
	if to.Type().Elem().Kind() == reflect.Uint8 || !d.is('[') {
		return false // bytes are another thing
	}
	d.space()
	if d.is(']') {
		to.Set(reflect.MakeSlice(to.Type(), 0, 0))
		return true
	}
	for n := 0; ; n++ {
		if n >= to.Cap() {
			to.Grow(max(n, 4))
		}
		to.SetLen(n + 1)
		if !d.value(to.Index(n)) {
			return false
		}
		d.space()
		if d.is(']') {
			return true
		}
		if !d.is(',') {
			return false
		}
		d.space()
	}
}

func (d *decoder) dict(to reflect.Value) bool {
	t := to.Type()
	if t.Key() != reflect.TypeFor[string]() {
		return false
	}
	to.Set(reflect.MakeMap(t))
	return d.members(func(key []byte) bool {
		v := reflect.New(t.Elem()).Elem()
		ok := d.value(v)
		if ok {
			to.SetMapIndex(reflect.ValueOf(string(key)), v)
		}
		return ok
	})
}

// token moves over a string and returns it without its quotes. plain says that it
// stands for itself.
func (d *decoder) token() (text []byte, plain, ok bool) {
	if d.i >= len(d.s) || d.s[d.i] != '"' {
		return nil, false, false
	}
	start, ascii := d.i+1, true
	for i := start; i < len(d.s); i++ {
		switch c := d.s[i]; {
		case c == '"':
			d.i = i + 1
			text = d.s[start:i]
			return text, ascii || utf8.Valid(text), true
		case c == '\\':
			end := scanString(d.s, d.i)
			if end < 0 {
				return nil, false, false
			}
			d.i = end
			return d.s[start : end-1], false, true
		case c < ' ':
			return nil, false, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false, false
}

func (d *decoder) text() (string, bool) {
	text, plain, ok := d.token()
	if !ok || plain {
		return string(text), ok
	}
	var s string
	err := json.Unmarshal(d.s[d.i-len(text)-2:d.i], &s)
	return s, err == nil
}

func (d *decoder) number(to reflect.Value, kind reflect.Kind) bool {
	end := scanInteger(d.s, d.i)
	if end < 0 {
		return false
	}
	digits := string(d.s[d.i:end])
	d.i = end
	switch kind {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || to.OverflowInt(n) {
			return false
		}
		to.SetInt(n)
		return true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || to.OverflowUint(n) {
			return false
		}
		to.SetUint(n)
		return true
	}
	return false
}

func (d *decoder) time(to reflect.Value) bool {
	start := d.i
	_, plain, ok := d.token()
	if !ok || !plain {
		return false
	}
	var at time.Time
	if at.UnmarshalJSON(d.s[start:d.i]) != nil {
		return false
	}
	to.Set(reflect.ValueOf(at))
	return true
}

// scanInteger returns the index after a whole number without a fraction or an
// exponent, or -1.
func scanInteger(s []byte, i int) int {
	if i >= len(s) || s[i] != '-' && !isDigit(s[i]) {
		return -1
	}
	end := scanNumber(s, i)
	for k := i; k < end; k++ {
		if s[k] != '-' && !isDigit(s[k]) {
			return -1
		}
	}
	return end
}
