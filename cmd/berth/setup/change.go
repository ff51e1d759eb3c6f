package setup

import (
	"fmt"
	"os"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/hook/setup"
)

// printChange prints the change of a file as diff -u does.
func printChange(w output.StyledWriter, c setup.Change) {
	if c.Before.Link != "" || c.After.Link != "" {
		printLinkChange(w, c)
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
	if text == "" { // an empty file is added or removed
		text = fmt.Sprintf("--- %s\n+++ %s\n", from, to)
	}
	for line := range strings.Lines(text) {
		printDiffLine(w, strings.TrimSuffix(line, "\n"))
	}
}

// printLinkChange prints the change of a symbolic link.
func printLinkChange(w output.StyledWriter, c setup.Change) {
	if c.Before.Exists {
		printDiffLine(w, "-link "+c.Path+" -> "+c.Before.Link)
	}
	if c.After.Exists {
		printDiffLine(w, "+link "+c.Path+" -> "+c.After.Link)
	}
}

func printDiffLine(w output.StyledWriter, line string) {
	colour := ""
	switch {
	case strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "+++ "):
		colour = output.Bold
	case strings.HasPrefix(line, "@@"):
		colour = output.Cyan
	case strings.HasPrefix(line, "-"):
		colour = output.Red
	case strings.HasPrefix(line, "+"):
		colour = output.Green
	}
	fmt.Fprintln(w, w.Style(colour, line))
}
