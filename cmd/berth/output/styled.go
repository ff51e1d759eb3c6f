package output

import (
	"io"
	"os"

	"golang.org/x/term"
)

// StyledWriter writes text for people, in colours if the terminal shows them.
type StyledWriter struct {
	io.Writer
	Colours bool
	// Width is the terminal's width in columns. 0 means no terminal: lines stay whole for grep.
	Width int
}

// NewStyledWriter returns a writer that uses colours if f is a terminal, unless NO_COLOR is set or TERM is dumb.
func NewStyledWriter(f *os.File) StyledWriter {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 0
	}
	return StyledWriter{f, canColour(f), width}
}

// canColour reports whether a file is a terminal that shows colours, and NO_COLOR isn't set.
func canColour(f *os.File) bool {
	return term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// ANSI colours, as the terminal takes them.
const (
	Bold   = "1"
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Cyan   = "36"
)

// Style returns a text in a colour, or unchanged if the writer uses none.
func (w StyledWriter) Style(colour, text string) string {
	if !w.Colours || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// leastWidth is the narrowest column in which text is broken into lines.
const leastWidth = 20

// WrapWords breaks a text between words into lines of at most width characters; a longer
// word has a line of its own. Below leastWidth the text stays whole.
func WrapWords(text string, width int) []string {
	if width < leastWidth {
		return []string{text}
	}
	return BreakWords(text, width)
}
