package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/spell"
)

// didYouMean is the nearest word as the end of a sentence, or "".
func didYouMean(word string, known []string) string {
	if near := spell.Nearest(word, known); near != "" {
		return " (did you mean " + near + "?)"
	}
	return ""
}

func verbs(app *cli.App) (names []string) {
	for _, c := range app.VisibleCommands() {
		names = append(names, c.Name)
	}
	return names
}

// longNames lists flags as they are typed.
func longNames(flags []cli.Flag) (names []string) {
	for _, f := range flags {
		for _, name := range f.Names() {
			if len(name) > 1 {
				names = append(names, "--"+name)
			}
		}
	}
	return names
}
