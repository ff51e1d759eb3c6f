// Package printable escapes untrusted text for terminals. Names, commands and messages of images, registries and engines'
// users can contain control characters, which terminals interpret.
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

// maxLine bounds a line, in bytes.
const maxLine = 8 << 10

// Line is Escape for one line: each run of white space, including line breaks, becomes one space. The middle of a text of
// more than 8 KiB is omitted.
func Line(text string) string {
	line := Escape(strings.Join(strings.Fields(text), " "))
	if len(line) <= maxLine {
		return line
	}
	// ToValidUTF8 drops characters that were cut.
	return strings.ToValidUTF8(line[:maxLine/2], "") + " … " + strings.ToValidUTF8(line[len(line)-maxLine/2:], "")
}
