package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/run"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
)

// findExampleVerb returns the verb of a command line, and the words behind it.
func findExampleVerb(app *cli.App, words []string) (verb *cli.Command, rest []string) {
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
			verb, rest := findExampleVerb(app, strings.Fields(strings.TrimPrefix(e.command, "berth ")))
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
				if word == "--" {
					break
				}
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
	for _, f := range run.Command().Flags {
		if c, ok := f.(cli.CategorizableFlag); ok && c.IsVisible() && c.GetCategory() == "" {
			t.Errorf("--%s is in no group", f.Names()[0])
		}
	}
}

// TestHelpFitsTerminal: on a terminal of 80 columns no line of any help is longer, except the command of an example, and
// no word is lost. Without a terminal, and on a wide one, the text is the library's.
func TestHelpFitsTerminal(t *testing.T) {
	usual := cli.FlagStringer
	cli.FlagStringer = describeFlag
	t.Cleanup(func() { cli.FlagStringer = usual })
	var verbs []string
	var walk func(above string, all []*cli.Command)
	walk = func(above string, all []*cli.Command) {
		for _, v := range all {
			verbs = append(verbs, above+v.Name)
			walk(above+v.Name+" ", v.Subcommands)
		}
	}
	walk("", newApp().VisibleCommands())
	for _, name := range append(verbs, "") {
		var b bytes.Buffer
		app := newApp()
		app.Writer = &b
		if err := app.Run(append(append([]string{"berth"}, strings.Fields(name)...), "--help")); err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{0, 1000} {
			if got := fitHelp(b.String(), width); got != b.String() {
				t.Errorf("berth %s --help is another one in %d columns", name, width)
			}
		}
		for _, width := range []int{60, 80, 100} {
			got := fitHelp(b.String(), width)
			for line := range strings.Lines(got) {
				if utf8.RuneCountInString(line)-1 > width && !strings.HasPrefix(line, "   berth ") {
					t.Errorf("berth %s --help has a line of more than %d columns: %s", name, width, line)
				}
			}
			words := func(text string) []string { return strings.Fields(strings.ReplaceAll(text, " # ", " ")) }
			if diff := cmp.Diff(words(b.String()), words(got)); diff != "" {
				t.Errorf("berth %s --help has other words in %d columns: %s", name, width, diff)
			}
		}
	}
}

func TestFitHelp(t *testing.T) {
	const text = `NAME:
   berth x - do something

DESCRIPTION:
   A paragraph that has a line with more than forty characters
   and a short one.

   WHAT is one of
     a                two
     registry.example/team/app:latest  another that is explained at length
   The end.

OPTIONS:
   --long=VALUE,VALUE,VALUE  a flag that has a long placeholder
   --all, -a                 a flag that has a short name

EXAMPLES:
   # what the command below does on this host
   berth x --long=value,value,value something else
`
	const want = `NAME:
   berth x - do something

DESCRIPTION:
   A paragraph that has a line with more
   than forty characters and a short one.

   WHAT is one of
     a  two
     registry.example/team/app:latest
        another that is explained at
        length
   The end.

OPTIONS:
   --long=VALUE,VALUE,VALUE
              a flag that has a long
              placeholder
   --all, -a  a flag that has a short name

EXAMPLES:
   # what the command below does on this
   # host
   berth x --long=value,value,value something else
`
	if diff := cmp.Diff(want, fitHelp(text, 42)); diff != "" {
		t.Error(diff)
	}
}

// TestVersion: -v, --version and the verb print the same line, to which the verb adds what berth was built with.
func TestVersion(t *testing.T) {
	printed := func(words ...string) string {
		t.Helper()
		var b bytes.Buffer
		app := newApp()
		app.Writer, app.Version = &b, "1.2.3"
		if err := app.Run(orderArguments(app, append([]string{"berth"}, words...))); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, words := range [][]string{{"-v"}, {"--version"}, {"-v", "ps"}} {
		if got := printed(words...); got != "berth version 1.2.3\n" {
			t.Errorf("berth %s prints %q", strings.Join(words, " "), got)
		}
	}
	if got := printed("version"); !strings.HasPrefix(got, "berth version 1.2.3 (go") {
		t.Errorf("berth version prints %q", got)
	}
}

func TestHelpHasExitTable(t *testing.T) {
	if !strings.Contains(newApp().Description, verb.ExitTable()) {
		t.Error("the help doesn't have the table")
	}
}

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		flag cli.Flag
		want string
	}{
		{&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "a terminal"}, "--tty, -t\ta terminal"},
		{&cli.StringFlag{Name: "cpus", Usage: "at most `N` CPUs"}, "--cpus N\tat most N CPUs"},
		{&cli.StringFlag{Name: "network", Usage: "which", Value: "host"}, "--network VALUE\twhich (default: host)"},
		{&cli.StringFlag{Name: "config", Usage: "read `FILE`", EnvVars: []string{"BERTH_CONFIG"}}, "--config FILE\tread FILE [$BERTH_CONFIG]"},
		{waiting.Flags()[0], "--wait[=DURATION]\twait in the queue until the devices are free, or with --wait=DURATION at most that long"},
	} {
		if got := describeFlag(c.flag); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
