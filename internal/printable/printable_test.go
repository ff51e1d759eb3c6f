package printable

import (
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		`exec /bin/sh: "x" isn't there`: `exec /bin/sh: "x" isn't there`,
		"Größe 3 µs …":                  "Größe 3 µs …",
		" a\tb\r\n  c\u0085d":           "a b c d",
		"\x1b]0;title\a":                `\x1b]0;title\a`,
		"\x1b[31mred\x7f":               `\x1b[31mred\x7f`,
		"\u009b31m":                     `\u009b31m`,
		"\x9b31m\xff":                   `\x9b31m\xff`,
		"a\u202eb":                      `a\u202eb`,
		"\ufffd":                        "\ufffd",
		"a\x00b\bc":                     `a\x00b\bc`,
	} {
		if got := Line(text); got != want {
			t.Errorf("%q becomes %s, want %s", text, got, want)
		}
	}
}

// TestLongLine: a long line keeps its beginning and its end, and has whole characters.
func TestLongLine(t *testing.T) {
	text := "begin " + strings.Repeat("ä/", 100_000) + " end"
	got := Line(text)
	if len(got) > maxLine+10 || !strings.HasPrefix(got, "begin ä/") || !strings.HasSuffix(got, "ä/ end") ||
		!strings.Contains(got, " … ") || strings.Contains(got, "\ufffd") {
		t.Errorf("%d bytes: %.20s", len(got), got)
	}
}
