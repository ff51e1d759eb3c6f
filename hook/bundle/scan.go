package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	fastjson "github.com/berth-gpu/berth/internal/json"
)

// The functions here read text that is known to be valid JSON: Parse calls [checkSyntax]
// for the whole document first.

// member is one member of an object. start and end enclose it in the object's
// text, from the key's quote to the end of the value.
type member struct {
	key        string
	value      []byte
	start, end int
	// at is the index of the value in the object's text.
	at int
}

// checkSyntax returns an error that names the byte at which data stops being JSON.
func checkSyntax(data []byte) error {
	if fastjson.Valid(data) {
		return nil
	}
	var any json.RawMessage
	err := json.Unmarshal(data, &any) // for its error, which has position and cause
	var broken *json.SyntaxError
	if errors.As(err, &broken) {
		return fmt.Errorf("broken JSON at byte %d: %w", broken.Offset, err)
	}
	return errors.New("broken JSON")
}

// eachMember yields an object's members in order, equal keys included; none if obj is not an
// object.
func eachMember(obj []byte) iter.Seq[member] {
	return func(yield func(member) bool) {
		i := skipSpace(obj, 0)
		if i >= len(obj) || obj[i] != '{' {
			return
		}
		for i = skipSpace(obj, i+1); obj[i] != '}'; i = skipSpace(obj, i) {
			if obj[i] == ',' {
				i++
				continue
			}
			m := member{start: i}
			i = skipValue(obj, i)
			m.key = unquoteString(obj[m.start:i])
			m.at = skipSpace(obj, skipSpace(obj, i)+1) // after the colon
			i = skipValue(obj, m.at)
			m.value, m.end = obj[m.at:i], i
			if !yield(m) {
				return
			}
		}
	}
}

// splitMembers returns the members that eachMember yields.
func splitMembers(obj []byte) []member {
	return slices.AppendSeq(make([]member, 0, 8), eachMember(obj))
}

// splitElements returns an array's elements; nil if arr is not an array.
func splitElements(arr []byte) [][]byte {
	i := skipSpace(arr, 0)
	if i >= len(arr) || arr[i] != '[' {
		return nil
	}
	var all [][]byte
	for i = skipSpace(arr, i+1); arr[i] != ']'; i = skipSpace(arr, i) {
		if arr[i] == ',' {
			i++
			continue
		}
		start := i
		i = skipValue(arr, i)
		all = append(all, arr[start:i])
	}
	return all
}

// findMember returns the member with exactly this key. Parse has refused documents with
// equal keys in the sections that berth reads.
func findMember(obj []byte, key string) (member, bool) {
	for m := range eachMember(obj) {
		if m.key == key {
			return m, true
		}
	}
	return member{}, false
}

func skipSpace(s []byte, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index after the value that begins at i.
func skipValue(s []byte, i int) int {
	switch s[i] {
	case '"':
		return skipString(s, i)
	case '{', '[':
		return skipNested(s, i)
	}
	for i < len(s) && !strings.ContainsRune(",]} \n\t\r", rune(s[i])) {
		i++
	}
	return i
}

func skipString(s []byte, i int) int {
	for i++; s[i] != '"'; i++ {
		if s[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipNested(s []byte, i int) int {
	for depth := 0; ; i++ {
		switch s[i] {
		case '"':
			i = skipString(s, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}

// unquoteString decodes a JSON string as encoding/json does.
func unquoteString(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return string(quoted) // unreachable: the text is valid JSON
	}
	return s
}
