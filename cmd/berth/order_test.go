package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestOrderArguments(t *testing.T) {
	for _, c := range []struct{ name, typed, want string }{
		{"behind the task", "berth rm train -f", "berth rm --force train"},
		{"between tasks", "berth stop a -t 3 b", "berth stop --time 3 a b"},
		{"joined by =", "berth stop a --time=3 b", "berth stop --time=3 a b"},
		{"several short ones", "berth ps -an 5", "berth ps --all --last 5"},
		{"a joined value", "berth logs train -n1", "berth logs --tail=1 train"},
		{"a joined value like a flag", "berth stop a -t-1", "berth stop --time=-1 a"},
		{"several with a joined value", "berth logs -tfn1 a", "berth logs --timestamps --follow --tail=1 a"},
		{"run's", "berth run -eA=1 -u1000 -w/tmp -m64m -v/tmp:/t image", "berth run --env=A=1 --user=1000 --workdir=/tmp --memory=64m --volume=/tmp:/t image"},
		{"the last has a value", "berth run -itv /a:/b image ls -la", "berth run --interactive --tty --volume /a:/b image ls -la"},
		{"exec's", "berth exec -itw/tmp a ls -la", "berth exec --interactive --tty --workdir=/tmp a ls -la"},
		{"a switch that is off", "berth run -it=false image", "berth run --interactive --tty=false image"},
		{"a value behind =", "berth run -ie=A=1 image", "berth run --interactive --env=A=1 image"},
		{"a long one with one dash", "berth run -gpus 1 -it image", "berth run --gpus 1 --interactive --tty image"},
		{"a long one misspelt", "berth run -gups 1 image", "berth run -gups 1 image"},
		{"docker's, that isn't there", "berth run -da STDIN image", "berth run --detach -a STDIN image"},
		{"joined to its value", "berth run -itaSTDIN image", "berth run --interactive --tty -a image"},
		{"a value and a flag alike", "berth run -e -it image", "berth run --env -it image"},
		{"help", "berth stop -h train", "berth stop --help"},
		{"help behind words", "berth rm train --help", "berth rm --help"},
		{"help of a verb below", "berth cdi list -h x", "berth cdi list --help"},
		{"help of a verb above", "berth cdi --help", "berth cdi --help"},
		{"run's help", "berth run -h", "berth run --help"},
		{"run's help and a word", "berth run -h x", "berth run --help"},
		{"run's help among flags", "berth run --gpus 1 -it -h", "berth run --help"},
		{"the command's help", "berth run image -h", "berth run image -h"},
		{"docker's hostname", "berth run -h one image", "berth run --hostname one image"},
		{"docker's hostname and flags", "berth run -ith one --gpus 1 -v /a:/b --rm image ls -h", "berth run --interactive --tty --hostname one --gpus 1 --volume /a:/b --rm image ls -h"},
		{"docker's hostname, joined", "berth run -hone image", "berth run --hostname=one image"},
		{"flags alone behind it", "berth run -h one --gpus 1", "berth run --help"},
		{"exec's help", "berth exec -h one ls", "berth exec --help"},
		{"after the end of flags", "berth rm a -- -f", "berth rm -- a -f"},
		{"a flag of all", "berth --config /x rm a -f", "berth --config /x rm --force a"},
		{"a value that looks like a verb", "berth --config rm rm a -f", "berth --config rm rm --force a"},
		{"a command's flags", "berth exec a ls -l", "berth exec a ls -l"},
		{"an image's command", "berth run image ls -l", "berth run image ls -l"},
		{"a verb with verbs", "berth cdi validate x --json", "berth cdi validate --json x"},
		{"a verb that berth calls itself", "berth enter /x 1 sh -c x", "berth enter /x 1 sh -c x"},
		{"no such verb", "berth nosuch a -f", "berth nosuch a -f"},
		{"an unknown flag", "berth rm a --frce b", "berth rm --frce a b"},
		{"a value that is missing", "berth kill a -s", "berth kill --signal"},
		{"two names of one flag", "berth run -e A=1 --env B=2 -e=C=3 image", "berth run --env A=1 --env B=2 --env=C=3 image"},
		{"nothing", "berth", "berth"},
		{"what a shell asks", "berth rm a --generate-bash-completion", "berth rm a --generate-bash-completion"},
		{"no verb", "berth --version", "berth --version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			typed := strings.Fields(c.typed)
			got := orderArguments(newApp(), slices.Clone(typed))
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q became %q, want %q", c.typed, got, c.want)
			}
		})
	}
}

// TestTaskNamedHelp: tasks and images can have the names of the library's own verbs.
func TestTaskNamedHelp(t *testing.T) {
	for _, name := range []string{"h", "help"} {
		var path []string
		var try func(c *cli.Command)
		try = func(verb *cli.Command) {
			path = append(path, verb.Name)
			defer func() { path = path[:len(path)-1] }()
			for _, sub := range verb.Subcommands {
				try(sub)
			}
			if len(verb.Subcommands) > 0 {
				return
			}
			app, got := newApp(), []string{}
			leaf := &cli.Command{Subcommands: app.Commands}
			for _, word := range path {
				leaf = leaf.Command(word)
			}
			leaf.Action = func(c *cli.Context) error { got = c.Args().Slice(); return nil }
			app.Writer, app.ErrWriter = io.Discard, io.Discard
			typed := slices.Concat([]string{"berth"}, path, []string{name, "x"})
			err := app.Run(orderArguments(app, typed))
			if err != nil || !slices.Equal(got, []string{name, "x"}) {
				t.Errorf("%q: the verb gets %q (%v)", typed, got, err)
			}
		}
		for _, verb := range newApp().Commands {
			try(verb)
		}
	}
}

// TestTwoNamesOfOneFlag: -e and --env can be given in one command line, and keep their order, as with
// docker.
func TestTwoNamesOfOneFlag(t *testing.T) {
	var env []string
	app := newApp()
	app.Writer, app.ErrWriter = io.Discard, io.Discard
	app.Command("run").Action = func(c *cli.Context) error {
		env = c.StringSlice("env")
		return nil
	}
	if err := app.Run(orderArguments(app, strings.Fields("berth run -e A=1 --env B=2 -eC=3 -t --tty image"))); err != nil {
		t.Fatal(err)
	}
	if want := []string{"A=1", "B=2", "C=3"}; !slices.Equal(env, want) {
		t.Errorf("--env is %q, want %q", env, want)
	}
}
