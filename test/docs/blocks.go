// Package docs tests the user's guide: the commands that it shows are run on a
// simulated server, and their output is compared with the page.
//
// It knows these kinds of fenced blocks, by the words behind the fence:
//
//	console    commands after "$ ", and what they print
//	sh make    targets of the Makefile
//	sh usage   calls of a program, and what each does
//	json       well-formed JSON
//	toml       well-formed TOML
//	text demo  what make demo prints; test/demo compares it
//
// Blocks that name an engine ("console containerd") are run by test/engines, and
// "sh install" by test/packages.
//
// A block of any other kind is an error, because no test would notice that it is stale.
package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// block is one fenced block of a page.
type block struct {
	page string
	line int // line of its fence, from 1
	kind string
	text []string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// fenced returns the blocks of a page. A fence without an end is an error.
func fenced(page, text string) (all []block, err error) {
	var b *block
	for i, line := range strings.Split(text, "\n") {
		kind, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && b == nil:
			b = &block{page: page, line: i + 1, kind: kind}
		case fence:
			all, b = append(all, *b), nil
		case b != nil:
			b.text = append(b.text, line)
		}
	}
	if b != nil {
		return nil, fmt.Errorf("%s: the block is never closed", b)
	}
	return all, nil
}

// command is one command of a console block.
type command struct {
	line       string // without the prompt and the remark
	background bool
	code       int
	prints     []string // nil: the page shows no output
}

var (
	remark = regexp.MustCompile(`\s+# (.*)$`)
	ending = regexp.MustCompile(`\bexit code (\d+)\b`)
)

// commands returns the commands of a console block. A remark can name the exit code; it is 0
// otherwise.
func (b block) commands() (all []command, err error) {
	for _, line := range b.text {
		words, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case prompt:
			var c command
			if m := ending.FindStringSubmatch(remark.FindString(words)); m != nil {
				fmt.Sscan(m[1], &c.code)
			}
			c.line, c.background = strings.CutSuffix(remark.ReplaceAllString(words, ""), " &")
			all = append(all, c)
		case len(all) == 0:
			return nil, fmt.Errorf("%s: output before the first command: %q", b, line)
		default:
			last := &all[len(all)-1]
			last.prints = append(last.prints, line)
		}
	}
	return all, nil
}

var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\b(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "$1-UUID"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "ID"},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\d \d\d:\d\d\b`), "TIME"},
	{regexp.MustCompile(`; waited [0-9.hms]+`), ""}, // printed after a second, if the machine is slow
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|s|m|m\d\ds|h\d\dm)\b`), "AGE"},
	{regexp.MustCompile(`\s+`), " "},
}

// same replaces ids, times and the width of columns.
func same(line string) string {
	for _, c := range changing {
		line = c.pattern.ReplaceAllString(line, c.with)
	}
	return strings.TrimSpace(line)
}

// fits reports whether the output matches the page. "…" matches any text within a line; alone on a
// line, it matches any number of lines.
func fits(shown []string, printed string) bool {
	var pattern strings.Builder
	for _, line := range shown {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:.*\n)*`)
			continue
		}
		parts := strings.Split(same(line), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern.WriteString(strings.Join(parts, ".*") + `\n`)
	}
	var got strings.Builder
	for line := range strings.Lines(printed) {
		got.WriteString(same(line) + "\n")
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(got.String())
}
