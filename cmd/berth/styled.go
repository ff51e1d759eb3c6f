package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/doctor"
	"github.com/berth-gpu/berth/hook/setup"
)

// styledWriter writes for people, in colours if the terminal shows them.
type styledWriter struct {
	io.Writer
	colours bool
}

// newStyledWriter uses colours on a terminal, unless NO_COLOR is set or the terminal is a
// dumb one.
func newStyledWriter(f *os.File) styledWriter {
	colours := term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return styledWriter{f, colours}
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

// printFindings prints a line for each finding.
func (w styledWriter) printFindings(all []doctor.Finding) {
	colours := map[doctor.State]string{doctor.OK: green, doctor.Warning: yellow, doctor.Failure: red}
	for _, f := range all {
		line := fmt.Sprintf("%s  %-13s  %s", w.style(colours[f.State], fmt.Sprintf("%-7s", f.State)), f.About, oneLine(f.Text))
		if f.Fix != "" {
			line += "; fix: " + oneLine(f.Fix)
		}
		fmt.Fprintln(w, line)
	}
}
