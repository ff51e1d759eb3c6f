package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// orderArguments puts a verb's flags before its other words, and each into a word of its own, as
// the library wants them: people type "berth rm train -f" and "berth run -itv /a:/b".
// Behind the first word of a verb that takes a command, flags are the command's.
func orderArguments(app *cli.App, args []string) []string {
	cmd, at := verbIn(app, args)
	if cmd == nil || cmd.Hidden || args[len(args)-1] == completionFlag {
		return args
	}
	flags, words := slices.Clone(args[:at+1]), []string{}
	for rest := args[at+1:]; len(rest) > 0; rest = rest[1:] {
		switch {
		case rest[0] == "--":
			return slices.Concat(flags, rest[:1], words, rest[1:])
		case !verb.IsFlag(rest[0]) && verb.TakesCommand(cmd):
			return append(flags, rest...)
		case !verb.IsFlag(rest[0]):
			words = append(words, rest[0])
			continue
		}
		given, waits := splitFlags(cmd.Name, cmd.Flags, rest[0])
		if last := len(given) - 1; asksHelp(given[last]) {
			if !isHostname(cmd, given[last], rest[1:]) {
				return append(args[:at+1:at+1], "--help")
			}
			given[last], waits = "--hostname", true
		}
		flags = append(flags, given...)
		switch {
		case waits && len(rest) == 1:
			return flags // the library says that the value is missing
		case waits:
			flags, rest = append(flags, rest[1]), rest[1:]
		}
	}
	return append(flags, words...)
}

// verbIn is the verb that the arguments name, and where; nil if there is none. Of one with
// verbs below it is the one below.
func verbIn(app *cli.App, args []string) (verb *cli.Command, at int) {
	if at = verbAt(app, args); at < 0 {
		return nil, at
	}
	verb = app.Command(args[at])
	if verb == nil || len(verb.Subcommands) == 0 {
		return verb, at
	}
	if at++; at == len(args) {
		return nil, at
	}
	return verb.Command(args[at]), at
}

// verbAt is where the verb is among the arguments, -1 if there is none.
func verbAt(app *cli.App, args []string) int {
	for i := 1; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			return i
		}
		if _, waits := splitFlags("", app.Flags, args[i]); waits {
			i++
		}
	}
	return -1
}

func asksHelp(word string) bool { return word == "-h" || word == "--help" || word == "-help" }

// isHostname says whether -h is docker's of run: the name and an image are behind it.
func isHostname(cmd *cli.Command, word string, rest []string) bool {
	if word != "-h" || flagOf(cmd.Flags, "hostname") == nil || len(rest) == 0 || verb.IsFlag(rest[0]) {
		return false
	}
	for rest = rest[1:]; len(rest) > 0 && verb.IsFlag(rest[0]) && rest[0] != "--"; rest = rest[1:] {
		if _, waits := splitFlags(cmd.Name, cmd.Flags, rest[0]); waits && len(rest) > 1 {
			rest = rest[1:]
		}
	}
	return len(rest) > 0
}

// splitFlags gives each of the short flags in one word a word of its own, and joins the value
// that is left to the last of them by =; waits says that the value is the next argument.
// Aliases become the flag's first name: the library refuses two names of one flag (-e A=1 --env B=2).
// What neither the verb nor docker knows stays together, for the library to complain about.
func splitFlags(verb string, flags []cli.Flag, word string) (given []string, waits bool) {
	name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if f := flagOf(flags, name); f != nil {
		if joined {
			return []string{firstName(f) + "=" + value}, false
		}
		return []string{firstName(f)}, takesValue(f)
	}
	if strings.HasPrefix(word, "--") || asksHelp(word) {
		return []string{word}, false
	}
	for i := 1; i < len(word); i++ {
		flag, value := "-"+word[i:i+1], strings.TrimPrefix(word[i+1:], "=")
		f := flagOf(flags, word[i:i+1])
		switch {
		case flag == "-h" && value == "":
			return append(given, flag), false
		case flag == "-h" && flagOf(flags, "hostname") != nil:
			return append(given, "--hostname="+value), false
		case f == nil && othertools.ExplainFlag(verb, flag) != "":
			return append(given, flag), false
		case f == nil:
			return []string{word}, false
		case takesValue(f) && value == "":
			return append(given, firstName(f)), true
		case takesValue(f) || word[i+1:] != value:
			return append(given, firstName(f)+"="+value), false
		}
		given = append(given, firstName(f))
	}
	return given, false
}

// firstName is the flag as it is written on a command line by its first name.
func firstName(f cli.Flag) string {
	name := f.Names()[0]
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// takesValue says whether a flag can't be without one.
func takesValue(f cli.Flag) bool {
	p := newPlainFlag(f)
	return p.usual && !p.alone
}

// narrowApp leaves of an app the verb that the arguments name, and of its flags those that
// stand there or aren't off when they don't. The library compares each flag with all
// others by regular expressions, which takes longer than finding an image. What
// has to know of the rest, as help, completions and what is meant by a misspelt flag,
// finds an app as it was.
func narrowApp(app *cli.App, args []string) {
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
		return newPlainFlag(f).off && !slices.Contains(given, f)
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
		switch last := newPlainFlag(f); {
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
		if newPlainFlag(f).hasName(name) || !newPlainFlag(f).usual && slices.Contains(f.Names(), name) {
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

func newPlainFlag(flag cli.Flag) plainFlag {
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

func (p plainFlag) hasName(name string) bool {
	return p.name == name || slices.Contains(p.aliases, name)
}

// describeFlag is a flag's line in the help: its names and placeholder, a tab, what it
// does. The library's own repeats the placeholder at each name and says of every
// switch that it is off by default.
func describeFlag(f cli.Flag) string {
	doc, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	var names []string
	for _, name := range f.Names() {
		if len(name) == 1 {
			names = append(names, "-"+name)
		} else {
			names = append(names, "--"+name)
		}
	}
	text, usage := strings.Join(names, ", "), doc.GetUsage()
	placeholder := "VALUE"
	if parts := strings.SplitN(usage, "`", 3); len(parts) == 3 {
		placeholder, usage = parts[1], strings.Join(parts, "")
	}
	switch f.(type) {
	case *cli.GenericFlag: // a value that may be left out
		text += "[=" + placeholder + "]"
	case *cli.BoolFlag:
	default:
		text += " " + placeholder
	}
	if value, ok := f.(*cli.StringFlag); ok && value.Value != "" {
		usage += " (default: " + value.Value + ")"
	}
	if env := doc.GetEnvVars(); len(env) > 0 {
		usage += " [$" + strings.Join(env, ", $") + "]"
	}
	return text + "\t" + usage
}

// completionFlag is the last word with which a shell asks what could come next.
const completionFlag = "--generate-bash-completion"
