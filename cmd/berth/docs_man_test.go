package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
)

// manPage is berth(1): what the help of berth and of each verb says, as one page. (The
// library's own has neither a verb's arguments nor its description.)
func manPage(app *cli.App) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".nh\n.TH berth 1\n\n.SH NAME\nberth \\- %s\n\n.SH SYNOPSIS\n", app.Usage)
	b.WriteString("\\fBberth\\fR [\\-\\-config FILE] VERB [FLAG…] [ARGUMENT…]\n\n.SH DESCRIPTION\n")
	b.WriteString(prose(app.Description) + "\n.SH GLOBAL OPTIONS\n" + manFlags(app.Flags) + "\n.SH COMMANDS\n")
	manVerbs(&b, "berth", app.Commands)
	return escapeRoff(b.String() + manSections())
}

func manVerbs(b *strings.Builder, above string, verbs []*cli.Command) {
	for _, c := range verbs {
		if c.Hidden {
			continue
		}
		name, words := above+" "+c.Name, ""
		switch {
		case len(c.Subcommands) > 0:
			words = " VERB"
		case len(visible(c.Flags)) > 0:
			words = " [FLAG…]"
		}
		if c.ArgsUsage != "" {
			words += " " + c.ArgsUsage
		}
		fmt.Fprintf(b, ".SS %s\n%s.\n", escapeDashes(name+words), strings.ToUpper(c.Usage[:1])+c.Usage[1:])
		if c.Description != "" {
			b.WriteString(".PP\n" + prose(c.Description))
		}
		b.WriteString(manFlags(c.Flags))
		manVerbs(b, name, c.Subcommands)
	}
}

// manFlags has a paragraph for each flag that people may know of.
func manFlags(flags []cli.Flag) string {
	var b strings.Builder
	for _, f := range visible(flags) {
		names, usage, _ := strings.Cut(describeFlag(f), "\t")
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", escapeDashes(names), usage)
	}
	return b.String()
}

func visible(flags []cli.Flag) (all []cli.Flag) {
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && v.IsVisible() {
			all = append(all, f)
		}
	}
	return all
}

func escapeDashes(text string) string { return strings.ReplaceAll(text, "-", `\-`) }

// prose is text of the help. What is indented there is a table; the requests' is left
// out, for the page has it once, in a section of its own.
func prose(text string) string {
	var b strings.Builder
	table := false
	text = strings.TrimSpace(strings.Replace(text, waiting.RequestHelp, "", 1))
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if indented := strings.HasPrefix(line, " "); indented != table && line != "" {
			b.WriteString(map[bool]string{true: ".EX\n", false: ".EE\n"}[indented])
			table = indented
		}
		switch {
		case line == "" && !table:
			line = ".PP"
		case strings.HasPrefix(line, "."):
			line = `\&` + line
		}
		fmt.Fprintln(&b, line)
	}
	if table {
		b.WriteString(".EE\n")
	}
	return b.String()
}

// manSections is what a man page has and the library's lacks, in the same tables as
// help and configuration.
func manSections() string {
	var b strings.Builder
	heading, words, _ := strings.Cut(waiting.RequestHelp, "\n")
	fmt.Fprintf(&b, "\n\n.SH REQUESTS\n%s\n.EX\n%s\n.EE\n", heading, words)
	b.WriteString("\n.SH EXAMPLES\n" + manExamples("", newApp().Commands))
	b.WriteString("\n.SH EXIT STATUS\n")
	for _, e := range verb.ExitCodes() {
		fmt.Fprintf(&b, ".TP\n%d\n%s\n", e.Code, e.Text)
	}
	fmt.Fprintf(&b, ".PP\n%s\n\n.SH FILES\n", verb.OwnCodes)
	for _, f := range files() {
		fmt.Fprintf(&b, ".TP\n%s\n%s\n", f.path, f.holds)
	}
	b.WriteString(".SH SEE ALSO\n.BR berth-config (5),\n.BR berth-runtime (8),\n.BR berth-hook (8),\n.BR berth-broker (8)\n")
	return b.String()
}

// manExamples has the examples of all verbs, in the order of the verbs.
func manExamples(above string, verbs []*cli.Command) string {
	var b strings.Builder
	for _, v := range verbs {
		for _, e := range examples()[above+v.Name] {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", escapeDashes(e.command), e.effect)
		}
		b.WriteString(manExamples(above+v.Name+" ", v.Subcommands))
	}
	return b.String()
}

// escapeRoff escapes the characters that roff interprets. No line of the page begins with a roff request.
func escapeRoff(text string) string {
	return strings.NewReplacer("\u2026", `\[u2026]`, "'", `\(aq`).Replace(text)
}

// configPage is berth-config(5): the packaged configuration, whose comments explain
// each key.
func configPage(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var b, said strings.Builder
	b.WriteString(".TH berth-config 5\n\n.SH NAME\nberth-config \\- the configuration of berth, its hook and its runtime\n\n.SH DESCRIPTION\n" +
		"The file is TOML. Every key may be left out; here they are with their defaults. A key that berth doesn't know is an error.\n")
	_, body, _ := strings.Cut(string(text), "\n\n") // after what the file says of itself
	row := false                                    // of what is a line of its own
	var keys []string                               // of which the comment speaks
	flush := func() {
		if len(keys) > 0 {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s", strings.Join(keys, "\n.TQ\n.B "), said.String())
			said.Reset()
			keys = nil
		}
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		switch comment, ok := strings.CutPrefix(line, "# "); {
		case ok:
			flush()
			if was := row; !strings.HasPrefix(comment, " ") && was {
				said.WriteString(".br\n")
			}
			row = strings.HasPrefix(comment, " ")
			fmt.Fprintln(&said, strings.ReplaceAll(comment, `\`, `\e`))
		case strings.HasPrefix(line, "["):
			flush()
			fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(strings.Trim(line, "[]")))
		case line != "":
			keys = append(keys, strings.ReplaceAll(line, `"`, `\(dq`))
		}
	}
	flush()
	b.WriteString(".SH SEE ALSO\n.BR berth (1),\n.BR berth-runtime (8)\n")
	return escapeRoff(b.String()), nil
}
