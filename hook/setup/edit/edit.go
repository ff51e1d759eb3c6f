// Package edit changes single values in the text of a configuration file: JSON by
// [JSON], TOML by [TOML]. Bytes that are not part of the change stay as they are:
// comments, order of keys, indentation, line ends, a byte order mark. Added text follows
// the style of the text around it.
//
// Positions in a text come from the parsers of hujson and go-toml. The package adds the
// edits, and refuses texts that have two meanings. It reads and writes no files.
package edit

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Raw is the text of a value in the file's own syntax. It is written as it is.
type Raw string

// Error is a defect of a text and its place. Line and Column count from 1, Column in
// characters.
type Error struct {
	Line, Column int
	Reason       string
}

func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Reason)
}

// errorAt returns an [Error] at a byte offset of a text.
func errorAt(text []byte, offset int, format string, values ...any) error {
	before := text[:min(max(offset, 0), len(text))]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return &Error{bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(line) + 1, fmt.Sprintf(format, values...)}
}

const byteOrderMark = "\ufeff"

// IsBlank reports whether a text is white space. Engines read it as a file without keys.
func IsBlank(text []byte) bool {
	return len(bytes.TrimSpace(bytes.TrimPrefix(text, []byte(byteOrderMark)))) == 0
}

// lineEnd is the line end that a text uses.
func lineEnd(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// indentation returns the white space at the start of the line that contains an offset.
func indentation(text []byte, offset int) string {
	line := string(text[bytes.LastIndexByte(text[:offset], '\n')+1:])
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}
