// Package jsonedit changes single members of a JSON object in its text. What isn't
// changed stays byte for byte: the order of keys, indentation, line ends, a byte order
// mark. What is added looks like what stands around it.
//
// It is for files that people write and that strict parsers read: comments and
// trailing commas are errors here as they are there, with their line and column.
package jsonedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Raw is the text of a value, which is written as it is.
type Raw string

// Member is a key with its value.
type Member struct {
	Key   string
	Value any
}

// Object is a value with members in their order.
type Object []Member

// Error is what is wrong with a text, and where: both from 1, the column in
// characters.
type Error struct {
	Line, Column int
	Reason       string
}

func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Reason)
}

// Check says whether the text is a JSON object, alone. The error Is an [*Error].
func Check(text []byte) error {
	_, err := parse(text)
	return err
}

// Get returns the text of the value at a path of keys; ok is false if it isn't there.
// A key that is there twice is an error, and so is a path through what is no object.
func Get(text []byte, path ...string) (value Raw, ok bool, err error) {
	doc, err := parse(text)
	if err != nil {
		return "", false, err
	}
	at := doc.root
	for i, key := range path {
		m, err := doc.member(at, key)
		if m == nil || err != nil {
			return "", false, err
		}
		at = m.value
		if i < len(path)-1 && !at.object {
			return "", false, doc.wrong(at.start, "%q is no object", key)
		}
	}
	return Raw(text[at.start:at.end]), true, nil
}

// Set gives the member at a path this value and returns the new text. Objects on the
// way that aren't there are made. A value is a [Raw], an [Object] or what json.Marshal
// takes.
func Set(text []byte, value any, path ...string) ([]byte, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, err
	}
	at := doc.root
	for i, key := range path {
		m, err := doc.member(at, key)
		switch {
		case err != nil:
			return nil, err
		case m == nil:
			for _, outer := range reversed(path[i+1:]) {
				value = Object{{outer, value}}
			}
			return doc.insert(at, Member{key, value})
		case i == len(path)-1:
			word, err := doc.render(value, doc.lineIndent(m.keyStart), doc.multiline(at))
			return splice(text, m.value.start, m.value.end, word), err
		case !m.value.object:
			return nil, doc.wrong(m.value.start, "%q is no object", key)
		}
		at = m.value
	}
	return nil, errors.New("a path has at least one key")
}

// Delete takes the member at a path away and returns the new text. One that isn't
// there is no error.
func Delete(text []byte, path ...string) ([]byte, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, err
	}
	at := doc.root
	for i, key := range path {
		m, err := doc.member(at, key)
		switch {
		case m == nil || err != nil:
			return text, err
		case i == len(path)-1:
			from, to := doc.extent(at, m)
			return splice(text, from, to, ""), nil
		case !m.value.object:
			return text, nil
		}
		at = m.value
	}
	return nil, errors.New("a path has at least one key")
}

// Empty says that the value at a path is an object without members.
func Empty(text []byte, path ...string) bool {
	value, ok, err := Get(text, path...)
	return err == nil && ok && len(bytes.Fields([]byte(value))) > 0 && bytes.Equal(bytes.Join(bytes.Fields([]byte(value)), nil), []byte("{}"))
}

// Equal says that two values mean the same, however they are written.
func Equal(a, b Raw) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, []byte(a)) == nil && json.Compact(&y, []byte(b)) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// Text is a value on one line.
func Text(value any) (Raw, error) {
	word, err := document{colon: ": "}.render(value, "", false)
	return Raw(word), err
}

func splice(text []byte, from, to int, word string) []byte {
	return bytes.Join([][]byte{text[:from], []byte(word), text[to:]}, nil)
}

func reversed(words []string) []string {
	var all []string
	for i := len(words) - 1; i >= 0; i-- {
		all = append(all, words[i])
	}
	return all
}

// where is the line and column of an offset.
func where(text []byte, offset int) (line, column int) {
	before := text[:min(offset, len(text))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}
