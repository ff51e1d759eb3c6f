package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/doctor"
	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/printable"
)

// styledWriter writes for people, in colours if the terminal shows them.
type styledWriter struct {
	io.Writer
	colours bool
	// width is the terminal's in columns; 0 is no terminal, and lines stay whole for grep.
	width int
}

// newStyledWriter uses colours on a terminal, unless NO_COLOR is set or the terminal is a
// dumb one.
func newStyledWriter(f *os.File) styledWriter {
	colours := term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 0
	}
	return styledWriter{f, colours, width}
}

// ANSI colours, as the terminal takes them.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (w styledWriter) style(colour, text string) string {
	if !w.colours || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// printChange prints the change of a file as diff -u does.
func (w styledWriter) printChange(c setup.Change) {
	if c.Before.Link != "" || c.After.Link != "" {
		w.printLinkChange(c)
		return
	}
	from, to := c.Path, c.Path
	if !c.Before.Exists {
		from = os.DevNull
	}
	if !c.After.Exists {
		to = os.DevNull
	}
	text := udiff.Unified(from, to, string(c.Before.Data), string(c.After.Data))
	if text == "" { // an empty file comes or goes
		text = fmt.Sprintf("--- %s\n+++ %s\n", from, to)
	}
	for line := range strings.Lines(text) {
		w.printDiffLine(strings.TrimSuffix(line, "\n"))
	}
}

// printLinkChange prints the change of a symbolic link.
func (w styledWriter) printLinkChange(c setup.Change) {
	if c.Before.Exists {
		w.printDiffLine("-link " + c.Path + " -> " + c.Before.Link)
	}
	if c.After.Exists {
		w.printDiffLine("+link " + c.Path + " -> " + c.After.Link)
	}
}

func (w styledWriter) printDiffLine(line string) {
	colour := ""
	switch {
	case strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "+++ "):
		colour = bold
	case strings.HasPrefix(line, "@@"):
		colour = cyan
	case strings.HasPrefix(line, "-"):
		colour = red
	case strings.HasPrefix(line, "+"):
		colour = green
	}
	fmt.Fprintln(w, w.style(colour, line))
}

// printFindings prints a line for each finding, and how many there are of each kind. Quiet
// leaves out what is ok, and the last line.
func (w styledWriter) printFindings(all []doctor.Finding, quiet bool) {
	colours := map[doctor.State]string{doctor.OK: green, doctor.Warning: yellow, doctor.Failure: red}
	count := map[doctor.State]int{}
	for _, f := range all {
		count[f.State]++
		if quiet && f.State == doctor.OK {
			continue
		}
		text := printable.Line(f.Text)
		if f.Fix != "" {
			text += "; fix: " + printable.Line(f.Fix)
		}
		head := fmt.Sprintf("%-7s  %-13s  ", f.State, f.About)
		lines := wrapWords(text, w.width-len(head))
		fmt.Fprintln(w, strings.Replace(head, string(f.State), w.style(colours[f.State], string(f.State)), 1)+lines[0])
		for _, line := range lines[1:] {
			fmt.Fprintln(w, strings.Repeat(" ", len(head))+line)
		}
	}
	if !quiet {
		fmt.Fprintf(w, "\n%d ok, %s, %s\n", count[doctor.OK], countOf(count[doctor.Warning], "warning"), countOf(count[doctor.Failure], "failure"))
	}
}

// leastWidth is the narrowest column in which text is broken into lines.
const leastWidth = 20

// wrapWords breaks a text between words into lines of at most width characters; a longer
// word has a line of its own. Below leastWidth the text stays whole.
func wrapWords(text string, width int) []string {
	if width < leastWidth {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
