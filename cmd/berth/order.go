package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// ordered puts a verb's flags before its other words, as the library wants them: people
// type "berth rm train -f". Verbs that take a command are left alone, for the flags
// behind it are the command's.
func ordered(app *cli.App, args []string) []string {
	at := verbAt(app, args)
	if at < 0 || args[len(args)-1] == completionFlag {
		return args
	}
	verb := app.Command(args[at])
	if verb == nil || verb.Hidden || len(verb.Subcommands) > 0 || slices.Contains([]string{"run", "exec", "alloc"}, verb.Name) {
		return args
	}
	flags, words := slices.Clone(args[:at+1]), []string{}
	for rest := args[at+1:]; len(rest) > 0; rest = rest[1:] {
		word := rest[0]
		switch {
		case word == "--":
			return slices.Concat(flags, rest[:1], words, rest[1:])
		case !strings.HasPrefix(word, "-") || word == "-":
			words = append(words, word)
			continue
		}
		flags = append(flags, word)
		if len(rest) > 1 && wantsValue(verb.Flags, word) {
			flags, rest = append(flags, rest[1]), rest[1:]
		}
	}
	return append(flags, words...)
}

// verbAt is where the verb is among the arguments, -1 if there is none.
func verbAt(app *cli.App, args []string) int {
	for i := 1; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			return i
		}
		if wantsValue(app.Flags, args[i]) {
			i++
		}
	}
	return -1
}

// wantsValue says whether the word behind a flag is its value. Of short ones in one
// word only the last can have one.
func wantsValue(flags []cli.Flag, word string) bool {
	name := strings.TrimLeft(word, "-")
	if strings.Contains(name, "=") {
		return false
	}
	if !strings.HasPrefix(word, "--") && len(name) > 1 {
		name = name[len(name)-1:]
	}
	return slices.ContainsFunc(flags, func(f cli.Flag) bool {
		value, ok := f.(cli.DocGenerationFlag)
		return ok && value.TakesValue() && slices.Contains(f.Names(), name)
	})
}
