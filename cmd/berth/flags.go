package main

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// describe is a flag's line in the help: its names and placeholder, a tab, what it
// does. The library's own repeats the placeholder at each name and says of every
// switch that it is off by default.
func describe(f cli.Flag) string {
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
