package main

import (
	"cmp"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/berth-gpu/berth/cmd/berth/output"
)

// helpPrinter is the library's type of a function that prints help by a template.
type helpPrinter = func(w io.Writer, template string, data any)

// printFitted returns a printer that lays the text of show out for the width that width
// returns.
func printFitted(show helpPrinter, width func() int) helpPrinter {
	return func(w io.Writer, template string, data any) {
		var text strings.Builder
		show(&text, template, data)
		_, _ = io.WriteString(w, fitHelp(text.String(), width())) // the library ignores this error too
	}
}

// leastHelpWidth is the narrowest terminal for which help is laid out.
const leastHelpWidth = 40

// fitHelp lays a help text out for a terminal of so many columns, if one of its lines is longer. Without a terminal,
// which is a width of 0, the text stays as it is, for grep. Commands of examples are never broken.
func fitHelp(text string, width int) string {
	if width < leastHelpWidth || longestLine(text) <= width {
		return text
	}
	var b strings.Builder
	section := ""
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for len(lines) > 0 {
		if heading, ok := strings.CutSuffix(lines[0], ":"); ok && heading == strings.ToUpper(heading) && heading != "" {
			section = heading
			b.WriteString(lines[0] + "\n")
			lines = lines[1:]
			continue
		}
		n := blockLength(lines, section)
		for _, line := range fitBlock(lines[:n], width, section) {
			b.WriteString(line + "\n")
		}
		lines = lines[n:]
	}
	return b.String()
}

func longestLine(text string) (longest int) {
	for line := range strings.Lines(text) {
		longest = max(longest, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return longest
}

// blockLength counts the first lines that are laid out together: the rows of a table, or a paragraph.
func blockLength(lines []string, section string) int {
	isRow, indent := hasColumns(lines[0], section), indentOf(lines[0])
	for i, line := range lines {
		switch {
		case i == 0:
		case line == "" || lines[0] == "" || indentOf(line) != indent || hasColumns(line, section) != isRow:
			return i
		case !isRow && section != "DESCRIPTION":
			return i
		}
	}
	return len(lines)
}

// hasColumns reports whether a line is the row of a table: a flag, verb or value, and what it means.
func hasColumns(line, section string) bool {
	left, right := splitColumns(line)
	return left != "" && right != "" && (section != "DESCRIPTION" || indentOf(line) > helpIndent)
}

// helpIndent is the indentation of the text below a heading.
const helpIndent = 3

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// splitColumns splits the row of a table at its first gap.
func splitColumns(line string) (left, right string) {
	left, right, _ = strings.Cut(strings.TrimSpace(line), "  ")
	return left, strings.TrimSpace(right)
}

func fitBlock(lines []string, width int, section string) []string {
	fits, indent := longestLine(strings.Join(lines, "\n")) <= width, indentOf(lines[0])
	switch isTable := hasColumns(lines[0], section); {
	case lines[0] == "" || fits && (isTable || section != "DESCRIPTION"):
		return lines
	case isTable:
		return fitColumns(lines, indent, width)
	case section == "EXAMPLES":
		return fitExample(lines, indent, width)
	case section == "DESCRIPTION":
		return indentAll(output.BreakWords(strings.Join(lines, " "), width-indent), indent, indent)
	}
	return indentAll(output.BreakWords(strings.Join(lines, " "), width-indent-helpIndent), indent, indent+helpIndent)
}

// fitColumns aligns the rows of a table at a column that leaves most of the width to the right side. A left side that
// is longer has a line of its own.
func fitColumns(lines []string, indent, width int) (all []string) {
	longest := 0
	for _, line := range lines {
		if left, _ := splitColumns(line); utf8.RuneCountInString(left) <= width*2/5 {
			longest = max(longest, utf8.RuneCountInString(left))
		}
	}
	column := indent + cmp.Or(longest, width/5) + len("  ")
	for _, line := range lines {
		left, right := splitColumns(line)
		wrapped := indentAll(output.BreakWords(right, width-column), column, column)
		head := strings.Repeat(" ", indent) + left
		if gap := column - utf8.RuneCountInString(head); gap >= len("  ") {
			wrapped[0] = head + strings.Repeat(" ", gap) + strings.TrimSpace(wrapped[0])
			head = ""
		}
		if head != "" {
			all = append(all, head)
		}
		all = append(all, wrapped...)
	}
	return all
}

// fitExample breaks the effect of an example into lines of comments.
func fitExample(lines []string, indent, width int) []string {
	text, ok := strings.CutPrefix(strings.TrimSpace(lines[0]), "# ")
	if !ok {
		return lines
	}
	all := output.BreakWords(text, width-indent-len("# "))
	for i := range all {
		all[i] = "# " + all[i]
	}
	return indentAll(all, indent, indent)
}

// indentAll indents the first line by first, and the others by others.
func indentAll(lines []string, first, others int) []string {
	for i, line := range lines {
		indent := others
		if i == 0 {
			indent = first
		}
		lines[i] = strings.Repeat(" ", indent) + line
	}
	return lines
}
