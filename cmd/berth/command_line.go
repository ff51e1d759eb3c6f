package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// orderArguments puts a verb's flags before its other words, and each flag into a word of its
// own, as the library needs them: users type "berth rm train -f" and "berth run -itv /a:/b".
// Flags after the first word of a verb that takes a command belong to the command.
func orderArguments(app *cli.App, args []string) []string {
	cmd, at := findVerb(app, args)
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
		if last := len(given) - 1; isHelpFlag(given[last]) {
			if !isHostnameFlag(cmd, given[last], rest[1:]) {
				return append(args[:at+1:at+1], "--help")
			}
			given[last], waits = "--hostname", true
		}
		flags = append(flags, given...)
		switch {
		case waits && len(rest) == 1:
			return flags // the library reports the missing value
		case waits:
			flags, rest = append(flags, rest[1]), rest[1:]
		}
	}
	return append(flags, words...)
}

// findVerb returns the verb that the arguments name, and its index; nil if there is none. For
// a verb with subcommands it returns the subcommand.
func findVerb(app *cli.App, args []string) (verb *cli.Command, at int) {
	if at = verbIndex(app, args); at < 0 {
		return nil, at
	}
	for verb = app.Command(args[at]); verb != nil && len(verb.Subcommands) > 0; verb = verb.Command(args[at]) {
		if at++; at == len(args) {
			return nil, at
		}
	}
	return verb, at
}

// verbIndex returns the index of the verb among the arguments, -1 if there is none.
func verbIndex(app *cli.App, args []string) int {
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

func isHelpFlag(word string) bool { return word == "-h" || word == "--help" || word == "-help" }

// isHostnameFlag reports whether -h is docker run's --hostname, and not a call for help: a
// name and an image follow it.
func isHostnameFlag(cmd *cli.Command, word string, rest []string) bool {
	if word != "-h" || findFlag(cmd.Flags, "hostname") == nil || len(rest) == 0 || verb.IsFlag(rest[0]) {
		return false
	}
	for rest = rest[1:]; len(rest) > 0 && verb.IsFlag(rest[0]) && rest[0] != "--"; rest = rest[1:] {
		if _, waits := splitFlags(cmd.Name, cmd.Flags, rest[0]); waits && len(rest) > 1 {
			rest = rest[1:]
		}
	}
	return len(rest) > 0
}

// splitFlags splits a word of several short flags into one word per flag, and appends a value
// behind the last of them with "=". waits means that the value is the next argument. An alias
// becomes the flag's first name, because the library refuses two names of one flag
// (-e A=1 --env B=2). A word with an unknown flag stays as it is, and the library reports it.
func splitFlags(verb string, flags []cli.Flag, word string) (given []string, waits bool) {
	name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if f := findFlag(flags, name); f != nil {
		if joined {
			return []string{firstFlagName(f) + "=" + value}, false
		}
		return []string{firstFlagName(f)}, takesValue(f)
	}
	if strings.HasPrefix(word, "--") || isHelpFlag(word) {
		return []string{word}, false
	}
	for i := 1; i < len(word); i++ {
		flag, value := "-"+word[i:i+1], strings.TrimPrefix(word[i+1:], "=")
		f := findFlag(flags, word[i:i+1])
		switch {
		case flag == "-h" && value == "":
			return append(given, flag), false
		case flag == "-h" && findFlag(flags, "hostname") != nil:
			return append(given, "--hostname="+value), false
		case f == nil && othertools.ExplainFlag(verb, flag) != "":
			return append(given, flag), false
		case f == nil:
			return []string{word}, false
		case takesValue(f) && value == "":
			return append(given, firstFlagName(f)), true
		case takesValue(f) || word[i+1:] != value:
			return append(given, firstFlagName(f)+"="+value), false
		}
		given = append(given, firstFlagName(f))
	}
	return given, false
}

// firstFlagName returns a flag's first name with its dashes.
func firstFlagName(f cli.Flag) string {
	name := f.Names()[0]
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// takesValue reports whether a flag needs a value.
func takesValue(f cli.Flag) bool {
	p := newPlainFlag(f)
	return p.usual && !p.alone
}

// narrowApp removes from an app all verbs but the one that the arguments name, and from that
// verb all flags that are neither given nor have a default. The library compares each flag
// with all others by regular expressions, which takes longer than finding an image. For help,
// completion and unknown flags, which need all verbs and flags, the app stays as it is.
func narrowApp(app *cli.App, args []string) {
	verb, at := findVerb(app, args)
	if verb == nil || len(verb.Subcommands) > 0 || args[len(args)-1] == completionFlag {
		return
	}
	given, known := findGivenFlags(verb.Flags, args[at+1:])
	if !known {
		return
	}
	app.Commands = []*cli.Command{app.Command(args[verbIndex(app, args)])}
	verb.Flags = slices.DeleteFunc(verb.Flags, func(f cli.Flag) bool {
		return newPlainFlag(f).off && !slices.Contains(given, f)
	})
}

// findGivenFlags returns the flags that the arguments give, and possibly more. known is false
// if an argument is a flag that isn't in the list.
func findGivenFlags(flags []cli.Flag, args []string) (given []cli.Flag, known bool) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" || len(word) < 2 || word[0] != '-' {
			return given, true
		}
		name, _, joined := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		f := findFlag(flags, name)
		if f == nil {
			return nil, false
		}
		given = append(given, f)
		switch last := newPlainFlag(f); {
		case joined || last.alone:
		case last.usual:
			i++ // skip the flag's value
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			i++ // the value or the first word: skipping it is harmless
		}
	}
	return given, true
}

func findFlag(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if newPlainFlag(f).hasName(name) || !newPlainFlag(f).usual && slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// plainFlag has the properties of a flag of a common type, without a call of the library.
type plainFlag struct {
	name    string
	aliases []string
	// usual means that the flag is of a common type, alone that it takes no value, and off
	// that it has no effect unless it is given.
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

// describeFlag returns a flag's line in the help: its names and placeholder, a tab, and its
// usage. The library's own form repeats the placeholder at each name and calls every switch
// off by default.
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
	case *cli.GenericFlag: // its value is optional
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

// completionFlag is the last word of a command line by which a shell asks for completions.
const completionFlag = "--generate-bash-completion"
