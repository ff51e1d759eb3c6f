package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// narrow leaves of an app the verb that the arguments name, and of its flags those that
// stand there or aren't off when they don't. The library compares each flag with all
// others by regular expressions, which takes longer than finding an image. What
// has to know of the rest, as help, completions and what is meant by a misspelt flag,
// finds an app as it was.
func narrow(app *cli.App, args []string) {
	at := verbAt(app, args)
	if at < 0 || args[len(args)-1] == completionFlag {
		return
	}
	verb := app.Command(args[at])
	if verb == nil || len(verb.Subcommands) > 0 {
		return
	}
	given, known := flagsAmong(verb.Flags, args[at+1:])
	if !known {
		return
	}
	app.Commands = []*cli.Command{verb}
	verb.Flags = slices.DeleteFunc(verb.Flags, func(f cli.Flag) bool {
		return plain(f).off && !slices.Contains(given, f)
	})
}

// flagsAmong finds the flags before the words, or more. It isn't known which they are if
// one of them isn't of these.
func flagsAmong(flags []cli.Flag, args []string) (given []cli.Flag, known bool) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" || len(word) < 2 || word[0] != '-' {
			return given, true
		}
		name, _, joined := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		f := flagOf(flags, name)
		if f == nil {
			return nil, false
		}
		given = append(given, f)
		switch last := plain(f); {
		case joined || last.alone:
		case last.usual:
			i++ // its value
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			i++ // its value or the first word: one more word does no harm
		}
	}
	return given, true
}

func flagOf(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if plain(f).is(name) || !plain(f).usual && slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// plainFlag is what is known of a flag of the usual kinds without asking the library.
type plainFlag struct {
	name    string
	aliases []string
	// usual: it is of such a kind. alone: it takes no value. off: without it, it is as if
	// it didn't exist.
	usual, alone, off bool
}

func plain(flag cli.Flag) plainFlag {
	switch f := flag.(type) {
	case *cli.BoolFlag:
		return plainFlag{f.Name, f.Aliases, true, true, !f.Value && f.EnvVars == nil && !f.Required && f.Action == nil}
	case *cli.StringFlag:
		return plainFlag{f.Name, f.Aliases, true, false, f.Value == "" && f.EnvVars == nil && !f.Required && f.Action == nil}
	case *cli.StringSliceFlag:
		return plainFlag{f.Name, f.Aliases, true, false, f.Value == nil && f.EnvVars == nil && !f.Required && f.Action == nil}
	case *cli.IntFlag:
		return plainFlag{f.Name, f.Aliases, true, false, f.Value == 0 && f.EnvVars == nil && !f.Required && f.Action == nil}
	}
	return plainFlag{}
}

func (p plainFlag) is(name string) bool { return p.name == name || slices.Contains(p.aliases, name) }
