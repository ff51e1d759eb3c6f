package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/hook/setup"
)

// paper is where people read, in colours if it can show them.
type paper struct {
	io.Writer
	colours bool
}

// paperFor looks whether a file is a terminal whose user wants colours.
func paperFor(f *os.File) paper {
	colours := term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return paper{f, colours}
}

const nothing = "/dev/null"

// change shows what becomes of a file.
func (p paper) change(c setup.Change) {
	if c.Before.Link != "" || c.After.Link != "" {
		p.link(c)
		return
	}
	from, to := c.Path, c.Path
	if !c.Before.Exists {
		from = nothing
	}
	if !c.After.Exists {
		to = nothing
	}
	text := udiff.Unified(from, to, string(c.Before.Data), string(c.After.Data))
	if text == "" { // an empty file comes or goes
		text = fmt.Sprintf("--- %s\n+++ %s\n", from, to)
	}
	for line := range strings.Lines(text) {
		p.line(strings.TrimSuffix(line, "\n"))
	}
}

// link shows a symbolic link as if its target were its content.
func (p paper) link(c setup.Change) {
	if c.Before.Exists {
		p.line("-link " + c.Path + " -> " + c.Before.Link)
	}
	if c.After.Exists {
		p.line("+link " + c.Path + " -> " + c.After.Link)
	}
}

func (p paper) line(text string) {
	colour := ""
	switch {
	case !p.colours:
	case strings.HasPrefix(text, "--- "), strings.HasPrefix(text, "+++ "):
		colour = "1"
	case strings.HasPrefix(text, "@@"):
		colour = "36"
	case strings.HasPrefix(text, "-"):
		colour = "31"
	case strings.HasPrefix(text, "+"):
		colour = "32"
	}
	if colour != "" {
		text = "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	fmt.Fprintln(p, text)
}

func (p paper) notes(notes []string) {
	for _, n := range notes {
		fmt.Fprintln(p, "note: "+n)
	}
}
