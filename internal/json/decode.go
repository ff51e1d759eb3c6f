package json

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"
)

// decoder decodes s from index i on. A method that returns false has found something, valid or not, that encoding/json
// has to handle.
type decoder struct {
	codec *Codec
	s     []byte
	i     int
}

func (c *Codec) decode(data []byte, to reflect.Value) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := decoder{codec: c, s: data}
	d.skipSpace()
	if !d.readValue(to) {
		return false
	}
	d.skipSpace()
	return d.i == len(d.s)
}

func (d *decoder) skipSpace() { d.i = skipSpace(d.s, d.i) }

// accept consumes a byte if it is the next one.
func (d *decoder) accept(c byte) bool {
	if d.i < len(d.s) && d.s[d.i] == c {
		d.i++
		return true
	}
	return false
}

func (d *decoder) acceptWord(w string) bool {
	if len(d.s)-d.i >= len(w) && string(d.s[d.i:d.i+len(w)]) == w {
		d.i += len(w)
		return true
	}
	return false
}

func (d *decoder) readValue(to reflect.Value) bool {
	t := to.Type()
	if isTime(t) {
		return d.readTime(to)
	}
	kind := t.Kind()
	if kind != reflect.Struct && d.codec.hasJSONMethods(t) {
		return false
	}
	if d.acceptWord("null") {
		return setNull(to, kind)
	}
	switch kind {
	case reflect.Struct:
		return d.readStruct(to)
	case reflect.Slice:
		return d.readSlice(to)
	case reflect.Map:
		return d.readMap(to)
	case reflect.Pointer:
		to.Set(reflect.New(t.Elem()))
		return d.readValue(to.Elem())
	case reflect.String:
		s, ok := d.readString()
		to.SetString(s)
		return ok
	case reflect.Bool:
		if d.acceptWord("true") {
			to.SetBool(true)
			return true
		}
		return d.acceptWord("false")
	}
	return d.readInteger(to, kind)
}

// setNull leaves values that cannot be nil as they are: zero.
func setNull(to reflect.Value, kind reflect.Kind) bool {
	switch kind {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		to.SetZero()
	case reflect.Interface, reflect.Func, reflect.Chan:
		return false
	}
	return true
}

// maxSkipDepth bounds the nesting of values that are skipped. It is far below the limit of
// encoding/json, which also counts the values around them.
const maxSkipDepth = 100

func (d *decoder) readStruct(to reflect.Value) bool {
	t := d.codec.structInfo(to.Type())
	if !t.plain {
		return false
	}
	seen := uint64(0) // a bit for each field
	next := 0
	return d.readMembers(func(key []byte) bool {
		i := t.findField(key, next)
		if i < 0 {
			if t.matchesFold(key) {
				return false
			}
			d.i = scanValue(d.s, d.i, maxDepth-maxSkipDepth)
			return d.i >= 0
		}
		if seen&(1<<i) != 0 {
			return false
		}
		seen |= 1 << i
		next = i + 1
		return d.readValue(to.Field(t.fields[i].index))
	})
}

// readMembers calls readValue for each member of an object, with the decoder at the member's value.
func (d *decoder) readMembers(readValue func(key []byte) bool) bool {
	if !d.accept('{') {
		return false
	}
	d.skipSpace()
	if d.accept('}') {
		return true
	}
	for {
		key, plain, ok := d.readQuoted()
		if !ok || !plain {
			return false
		}
		d.skipSpace()
		if !d.accept(':') {
			return false
		}
		d.skipSpace()
		if !readValue(key) {
			return false
		}
		d.skipSpace()
		if d.accept('}') {
			return true
		}
		if !d.accept(',') {
			return false
		}
		d.skipSpace()
	}
}

func (d *decoder) readSlice(to reflect.Value) bool {
	if to.Type().Elem().Kind() == reflect.Uint8 || !d.accept('[') {
		return false // encoding/json reads bytes from base64
	}
	d.skipSpace()
	if d.accept(']') {
		to.Set(reflect.MakeSlice(to.Type(), 0, 0))
		return true
	}
	for n := 0; ; n++ {
		if n >= to.Cap() {
			to.Grow(max(n, 4))
		}
		to.SetLen(n + 1)
		if !d.readValue(to.Index(n)) {
			return false
		}
		d.skipSpace()
		if d.accept(']') {
			return true
		}
		if !d.accept(',') {
			return false
		}
		d.skipSpace()
	}
}

func (d *decoder) readMap(to reflect.Value) bool {
	t := to.Type()
	if t.Key() != reflect.TypeFor[string]() {
		return false
	}
	to.Set(reflect.MakeMap(t))
	return d.readMembers(func(key []byte) bool {
		v := reflect.New(t.Elem()).Elem()
		ok := d.readValue(v)
		if ok {
			to.SetMapIndex(reflect.ValueOf(string(key)), v)
		}
		return ok
	})
}

// readQuoted consumes a string and returns the text between its quotes. plain means that the text has no escapes and is
// valid UTF-8, so that it needn't be decoded.
func (d *decoder) readQuoted() (text []byte, plain, ok bool) {
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

func (d *decoder) readString() (string, bool) {
	text, plain, ok := d.readQuoted()
	if !ok || plain {
		return string(text), ok
	}
	var s string
	err := json.Unmarshal(d.s[d.i-len(text)-2:d.i], &s)
	return s, err == nil
}

func (d *decoder) readInteger(to reflect.Value, kind reflect.Kind) bool {
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

func (d *decoder) readTime(to reflect.Value) bool {
	start := d.i
	_, plain, ok := d.readQuoted()
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

// scanInteger returns the index after a number without fraction and exponent, or -1.
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
