package everyday

import (
	"fmt"
	"strings"
)

// difference is a use with different results.
type difference struct {
	use
	docker, berth did
}

// page is docs/reference/everyday.md.
func page(all []use, found []difference) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Every day, next to docker

These are %d things that people do with docker every day, as scripts. A test runs each with docker 28 and with berth
in its place, on one server, and compares what is printed, what is said, the exit code, and how many tasks are left.
%d come out the same. The other %d are meant, and listed here with what both do; any other difference fails the test, as
does one of these that is gone.

In the scripts, $box is an image with busybox, $full one with an entrypoint, a user and a directory, and "soon" waits for a command to succeed.
Ids are printed as ID, and what docker or berth says of its own as "(it says why)".

## What differs

`, len(all), len(all)-len(found), len(found))
	for _, d := range found {
		fmt.Fprintf(&b, "### %s\n\n%s.\n\n%s\n", upper(d.name), upper(d.differs), indented(d.script))
		fmt.Fprintf(&b, "| docker | berth |\n|---|---|\n| %s | %s |\n\n", cell(d.docker), cell(d.berth))
	}
	b.WriteString("## What is the same\n\n")
	for _, u := range all {
		if u.differs == "" {
			fmt.Fprintf(&b, "### %s\n\n%s\n", upper(u.name), indented(u.script))
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func indented(script string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(script), "\n", "\n    ") + "\n"
}

// cell returns a script's result as one cell of a table.
func cell(d did) string {
	var parts []string
	for _, text := range []string{d.Out, d.Err} {
		if text = strings.TrimSpace(text); text != "" {
			parts = append(parts, "`"+strings.Join(strings.Split(strings.NewReplacer("|", "¦", "`", "'", "\r", "").Replace(text), "\n"), "`<br>`")+"`")
		}
	}
	parts = append(parts, fmt.Sprintf("exit code %d", d.Code))
	if d.Left != "0" {
		parts = append(parts, "tasks left: "+d.Left)
	}
	return strings.Join(parts, "<br>")
}
