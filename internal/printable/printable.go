// Package printable makes text fit for a terminal. Images, registries and engines' users choose
// names, commands and messages, and a terminal obeys the control characters in them.
package printable

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape writes characters that aren't printable, and bytes that are no character, as Go's
// string literals do: "\x1b". Text without such characters stays as it is; a backslash is
// printable, so the result can't be read back.
func Escape(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if strconv.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b.WriteString(text[:size])
		} else {
			quoted := strconv.Quote(text[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// maxLine bounds a line, in bytes: a path can be as long as its owner likes.
const maxLine = 8 << 10

// Line is Escape for one line: white space, line breaks too, becomes one space. The middle of
// a text of more than 8 KiB is left out.
func Line(text string) string {
	line := Escape(strings.Join(strings.Fields(text), " "))
	if len(line) <= maxLine {
		return line
	}
	// What is cut in the middle of a character is dropped.
	return strings.ToValidUTF8(line[:maxLine/2], "") + " … " + strings.ToValidUTF8(line[len(line)-maxLine/2:], "")
}
