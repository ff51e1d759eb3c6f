package everyday

import (
	"fmt"
	"strings"
)

// habitsPage is docs/reference/habits.md.
func habitsPage(tools []tool, outcomes [][]outcome) string {
	var b strings.Builder
	b.WriteString(`# Habits of other tools

Common command lines of docker, Apptainer and Slurm, and how berth handles them. A test runs each line on a simulated server
with eight GPUs. A line works, works differently for the reason given, or is refused. A refused line is followed by berth's
message (HOME stands for the home directory) and by the command to use instead, which the test runs as well.

| | lines | work | work differently | are refused |
|---|---|---|---|---|
`)
	for i, tl := range tools {
		same, differ, refused := sortOutcomes(outcomes[i])
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", tl.name, len(outcomes[i]), len(same), len(differ), len(refused))
	}
	for i, tl := range tools {
		same, differ, refused := sortOutcomes(outcomes[i])
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", upper(tl.name), tl.intro)
		if len(same) > 0 {
			b.WriteString("\n### What works\n\n")
		}
		for _, o := range same {
			b.WriteString(o.lines())
		}
		if len(differ) > 0 {
			b.WriteString("\n### What works differently\n")
		}
		for _, o := range differ {
			fmt.Fprintf(&b, "\n%s:\n\n%s", upper(o.differs), o.lines())
		}
		b.WriteString("\n### What is refused\n")
		for _, o := range refused {
			fmt.Fprintf(&b, "\n%s    %s\n\ninstead:\n\n    %s\n", o.lines(), o.refusal, o.instead)
		}
	}
	return b.String()
}

func sortOutcomes(all []outcome) (same, differ, refused []outcome) {
	for _, o := range all {
		switch {
		case o.instead != "":
			refused = append(refused, o)
		case o.differs != "":
			differ = append(differ, o)
		default:
			same = append(same, o)
		}
	}
	return same, differ, refused
}

// lines are the command line as it is known, and as it was tried, as code.
func (o outcome) lines() string {
	if o.tried == "" {
		return "    " + o.typed + "\n"
	}
	return "    " + o.typed + "\n    " + o.tried + "\n"
}
