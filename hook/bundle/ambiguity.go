package bundle

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON parsers differ in four ways: which of several equal keys counts; whether case
// matters (not in Go, but in C); where a string ends (in C at its first NUL, so that
// the key "linux\u0000" is "linux" there); and what half a surrogate pair is, or a byte that is no
// character (U+FFFD in Go, "?" or the byte itself in C). A runtime that reads another value than the one
// that berth has checked would escape the device rules, so all four are refused.

// nul is the escape of the character, which JSON does not allow to stand for itself.
const nul = `\u0000`

// quoted is the most bytes of a string that an error shows.
const quoted = 40

// checkStrings returns an error that names the first string of data, key or value, that
// contains a NUL.
func checkStrings(data []byte) error {
	if !bytes.Contains(data, []byte(nul)) {
		return nil
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '"' {
			continue
		}
		end := skipString(data, i)
		if text := data[i:end]; hasNUL(text) {
			if len(text) > quoted {
				text = []byte(strings.ToValidUTF8(string(text[:quoted]), "") + `…"`)
			}
			return fmt.Errorf("string %s at byte %d has a NUL, where some runtimes end it", text, i+1)
		}
		i = end - 1
	}
	return nil
}

// checkCharacters returns an error that names the first string of data that has bytes or escapes which are no character.
func checkCharacters(data []byte) error {
	if utf8.Valid(data) && !bytes.Contains(data, []byte(`\ud`)) && !bytes.Contains(data, []byte(`\uD`)) {
		return nil
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '"' {
			continue
		}
		end := skipString(data, i)
		if text := data[i:end]; !utf8.Valid(text) || hasLoneSurrogate(text) {
			return fmt.Errorf("string %.40q has what is no character, which runtimes read in different ways", text)
		}
		i = end - 1
	}
	return nil
}

// hasLoneSurrogate reports whether a string has half a surrogate pair.
func hasLoneSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		r := escapedRune(text[i:])
		switch {
		case !utf16.IsSurrogate(r):
			i++ // what is escaped begins no escape
		case utf16.DecodeRune(r, escapedRune(text[i+escapeSize:])) == utf8.RuneError:
			return true
		default:
			i += 2*escapeSize - 1
		}
	}
	return false
}

// escapeSize is the length of an escape with a number: "\u0041".
const escapeSize = 6

// escapedRune returns the number of the escape with which text begins, -1 if it begins with none.
func escapedRune(text []byte) rune {
	if len(text) < escapeSize || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[2:escapeSize]), 16, 32)
	if err != nil {
		return -1
	}
	return rune(n)
}

func hasNUL(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(text[i:], []byte(nul)) {
			return true
		}
		i++ // an escaped backslash begins no escape
	}
	return false
}

// checkValue returns an error that names the first ambiguous key of raw, which is to be
// decoded into a value of type t.
func (s *schema) checkValue(raw []byte, t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.Pointer:
		return s.checkValue(raw, t.Elem(), path)
	case reflect.Struct:
		return s.checkStruct(raw, t, path)
	case reflect.Map:
		return checkMap(raw, path)
	case reflect.Slice:
		if !holdsKeys(t.Elem()) {
			return nil
		}
		for i, e := range splitElements(raw) {
			if err := s.checkValue(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *schema) checkStruct(raw []byte, t reflect.Type, path string) error {
	known := s.fieldsOf(t)
	seen := make([]bool, len(known))
	for m := range eachMember(raw) {
		i := known.indexOf(m.key)
		if i < 0 {
			if name := known.caseVariant(m.key); name != "" {
				return fmt.Errorf("key %q differs from %q in case only", joinPath(path, m.key), name)
			}
			continue
		}
		if seen[i] {
			return fmt.Errorf("key %q is there twice", joinPath(path, m.key))
		}
		seen[i] = true
		if !holdsKeys(known[i].of) {
			continue
		}
		if err := s.checkValue(m.value, known[i].of, joinPath(path, m.key)); err != nil {
			return err
		}
	}
	return nil
}

func checkMap(raw []byte, path string) error {
	seen := make(map[string]bool)
	for m := range eachMember(raw) {
		if seen[m.key] {
			return fmt.Errorf("key %q is there twice", joinPath(path, m.key))
		}
		seen[m.key] = true
	}
	return nil
}

func holdsKeys(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Map, reflect.Slice:
		return true
	}
	return false
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
