package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// findVerb returns the verb of a command line, and the words behind it.
func findVerb(app *cli.App, words []string) (verb *cli.Command, rest []string) {
	verbs := app.Commands
	for i, word := range words {
		found := false
		for _, v := range verbs {
			if v.HasName(word) {
				verb, verbs, found = v, v.Subcommands, true
			}
		}
		if !found {
			return verb, words[i:]
		}
	}
	return verb, nil
}

// TestExamples: each verb has examples, and they have flags that the verb knows.
func TestExamples(t *testing.T) {
	app := newApp()
	for name, list := range examples() {
		for _, e := range list {
			verb, rest := findVerb(app, strings.Fields(strings.TrimPrefix(e.command, "berth ")))
			if verb == nil || !strings.HasPrefix(e.command, "berth "+name) {
				t.Errorf("%s: no verb in %q", name, e.command)
				continue
			}
			known := map[string]bool{}
			for _, f := range verb.Flags {
				for _, n := range f.Names() {
					known[n] = true
				}
			}
			for _, word := range rest {
				flag, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
				switch {
				case strings.HasPrefix(word, "--") && !known[flag]:
					t.Errorf("%q: berth %s has no flag --%s", e.command, name, flag)
				case strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--"):
					for _, letter := range flag {
						if !known[string(letter)] {
							t.Errorf("%q: berth %s has no flag -%c", e.command, name, letter)
						}
					}
				}
			}
		}
	}
	var walk func(above string, verbs []*cli.Command)
	walk = func(above string, verbs []*cli.Command) {
		for _, v := range verbs {
			walk(above+v.Name+" ", v.Subcommands)
			if !v.Hidden && len(v.Subcommands) == 0 && len(examples()[above+v.Name]) == 0 {
				t.Errorf("berth %s has no examples", above+v.Name)
			}
		}
	}
	walk("", app.Commands)
}

// TestRunHelp: the flags of run are in groups, all of them, and examples follow.
func TestRunHelp(t *testing.T) {
	app := newApp()
	var b bytes.Buffer
	app.Writer = &b
	if err := app.Run([]string{"berth", "run", "--help"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n   Devices\n", "\n   Limits\n", "\nEXAMPLES:\n   # run a command with one free GPU\n   berth run --gpus 1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q isn't there:\n%s", want, b.String())
		}
	}
	for _, f := range runCommand().Flags {
		if c, ok := f.(cli.CategorizableFlag); ok && c.IsVisible() && c.GetCategory() == "" {
			t.Errorf("--%s is in no group", f.Names()[0])
		}
	}
}
