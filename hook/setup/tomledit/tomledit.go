// Package tomledit changes single values of a TOML file in its text. What isn't changed
// stays byte for byte, comments too.
//
// It knows keys below table headers. What stands in inline tables, behind dotted keys or
// in arrays of tables it doesn't change: then [Set] is an error, and so is a change after
// which the file would mean anything but what it meant with that one value.
package tomledit

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// Raw is the text of a value, as it stands in a file.
type Raw string

// Error is what is wrong with a text, and where: both from 1, the column in characters.
type Error struct {
	Line, Column int
	Reason       string
}

func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Reason)
}

// Decode reads a file. The error Is an [*Error].
func Decode(text []byte) (map[string]any, error) {
	if at := foreign(text); at >= 0 {
		return nil, problem(text, at, "the text isn't UTF-8")
	}
	values := map[string]any{}
	_, err := toml.Decode(string(text), &values)
	var wrong toml.ParseError
	if errors.As(err, &wrong) {
		return nil, problem(text, max(0, min(wrong.Position.Start, len(text))), wrong.Message)
	}
	return values, err
}

// foreign is the place of the first byte that no file of text has, or -1.
func foreign(text []byte) int {
	for i, r := range string(text) {
		if r == 0 || r == utf8.RuneError && !bytes.HasPrefix(text[i:], []byte(string(utf8.RuneError))) {
			return i
		}
	}
	return -1
}

func problem(text []byte, at int, reason string) *Error {
	start := bytes.LastIndexByte(text[:at], '\n') + 1
	return &Error{bytes.Count(text[:at], []byte("\n")) + 1, utf8.RuneCount(text[start:at]) + 1, reason}
}

// Get returns the text of the value at a path of keys; ok is false if there is none that
// could be changed.
func Get(text []byte, path ...string) (value Raw, ok bool, err error) {
	if _, err := Decode(text); err != nil {
		return "", false, err
	}
	if s := find(scan(text), path); s != nil {
		return Raw(text[s.value:s.valueEnd]), true, nil
	}
	return "", false, nil
}

// Has says that there is a table or a value at a path.
func Has(text []byte, path ...string) bool {
	values, err := Decode(text)
	return err == nil && has(values, path)
}

// Set gives the key at a path this value and returns the new text. A table that isn't
// there is added at the end.
func Set(text []byte, value Raw, path ...string) ([]byte, error) {
	before, err := Decode(text)
	if err != nil {
		return nil, err
	}
	all := scan(text)
	if defined(text, all, path[:len(path)-1]) {
		return nil, standsElsewhere(path)
	}
	after := place(text, all, value, path)
	meant, err := Decode([]byte("v = " + string(value)))
	if err != nil {
		return nil, fmt.Errorf("value %s: %w", value, err)
	}
	put(before, meant["v"], path)
	if got, err := Decode(after); err != nil || !reflect.DeepEqual(got, before) {
		return nil, standsElsewhere(path)
	}
	return after, nil
}

func standsElsewhere(path []string) error {
	return fmt.Errorf("%s can't be set: it stands in an inline table or behind a dotted key", Key(path...))
}

// Delete takes a key, or the header of a table without keys, away and returns the new
// text. What isn't there is no error.
func Delete(text []byte, path ...string) ([]byte, error) {
	if _, err := Decode(text); err != nil {
		return nil, err
	}
	all := scan(text)
	if s := find(all, path); s != nil {
		return cut(text, s.start, s.end), nil
	}
	if i := header(all, path); i >= 0 && Empty(text, path...) {
		start := all[i].start
		if before := text[:start]; bytes.HasSuffix(before, []byte("\n\n")) || bytes.HasSuffix(before, []byte("\n\r\n")) {
			start = bytes.LastIndexByte(before[:len(before)-1], '\n') + 1
		}
		return cut(text, start, all[i].end), nil
	}
	return text, nil
}

// Headed says that a table has a header of its own.
func Headed(text []byte, path ...string) bool {
	_, err := Decode(text)
	return err == nil && header(scan(text), path) >= 0
}

// Empty says that there is a table's header at a path, and no key below it.
func Empty(text []byte, path ...string) bool {
	if _, err := Decode(text); err != nil {
		return false
	}
	all := scan(text)
	i := header(all, path)
	return i >= 0 && (i == len(all)-1 || all[i+1].key == nil)
}

// Equal says that two values mean the same, however they are written.
func Equal(a, b Raw) bool {
	x, err := Decode([]byte("v = " + string(a)))
	y, err2 := Decode([]byte("v = " + string(b)))
	return err == nil && err2 == nil && reflect.DeepEqual(x, y)
}

// Text is the text of a string, a boolean, a number, or of a list of them.
func Text(value any) Raw {
	switch v := value.(type) {
	case string:
		return Raw(quote(v))
	case []string:
		var words []string
		for _, w := range v {
			words = append(words, quote(w))
		}
		return Raw("[" + strings.Join(words, ", ") + "]")
	case []any:
		var words []string
		for _, w := range v {
			words = append(words, string(Text(w)))
		}
		return Raw("[" + strings.Join(words, ", ") + "]")
	}
	return Raw(fmt.Sprint(value))
}

// Key is a path as it is written.
func Key(path ...string) string {
	var words []string
	for _, w := range path {
		if w == "" || strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			w = quote(w)
		}
		words = append(words, w)
	}
	return strings.Join(words, ".")
}

func quote(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// has says whether there is a value at a path.
func has(values map[string]any, path []string) bool {
	var v any = values
	for _, key := range path {
		table, is := v.(map[string]any)
		if v = table[key]; !is || v == nil {
			return false
		}
	}
	return true
}

// put sets the value at a path.
func put(values map[string]any, value any, path []string) {
	for _, key := range path[:len(path)-1] {
		inner, is := values[key].(map[string]any)
		if !is {
			inner = map[string]any{}
			values[key] = inner
		}
		values = inner
	}
	values[path[len(path)-1]] = value
}

func cut(text []byte, from, to int) []byte { return slices.Concat(text[:from], text[to:]) }

// Copy is a deep copy of decoded values.
func Copy(values map[string]any) (map[string]any, error) {
	text, err := toml.Marshal(values)
	if err != nil {
		return nil, err
	}
	return Decode(text)
}
