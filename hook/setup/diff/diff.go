// Package diff shows how two short texts differ, as a unified diff: what people know
// from diff -u and git. It is for configuration files, and compares each line with
// each.
package diff

import (
	"fmt"
	"strings"
)

// Context is how many unchanged lines are shown around a change.
const Context = 3

// unended is said of a last line without a line end.
const unended = "\\ No newline at end of file\n"

// Unified is the difference between two texts, "" if there is none. The names are
// those of the old and the new file.
func Unified(oldName, newName, before, after string) string {
	if before == after {
		return ""
	}
	steps := compare(lines(before), lines(after))
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", oldName, newName)
	for _, h := range hunks(steps) {
		h.write(&b)
	}
	return b.String()
}

// step is a line that is kept (' '), taken away ('-') or added ('+').
type step struct {
	sign byte
	line string
	// from and to are how many lines of each text come before it.
	from, to int
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	all := strings.SplitAfter(text, "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// compare finds the fewest steps from one text to the other.
func compare(a, b []string) []step {
	common := table(a, b)
	var steps []step
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			steps = append(steps, step{' ', a[i], i, j})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			steps = append(steps, step{'-', a[i], i, j})
			i++
		default:
			steps = append(steps, step{'+', b[j], i, j})
			j++
		}
	}
	return steps
}

// table holds the length of the longest common part of what is behind each pair of
// lines.
func table(a, b []string) [][]int {
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}

type hunk []step

// hunks are the changes with what is around them.
func hunks(steps []step) (all []hunk) {
	from, end := 0, 0 // of the hunk that is open: [from, end)
	for i, s := range steps {
		if s.sign == ' ' {
			continue
		}
		if start := max(0, i-Context); start > end || end == 0 {
			if end > 0 {
				all = append(all, steps[from:end])
			}
			from = start
		}
		end = min(len(steps), i+1+Context)
	}
	return append(all, steps[from:end])
}

func (h hunk) write(b *strings.Builder) {
	removed, added := 0, 0
	for _, s := range h {
		if s.sign != '+' {
			removed++
		}
		if s.sign != '-' {
			added++
		}
	}
	fmt.Fprintf(b, "@@ -%s +%s @@\n", extent(h[0].from, removed), extent(h[0].to, added))
	for _, s := range h {
		line := s.line
		if !strings.HasSuffix(line, "\n") {
			line += "\n" + unended
		}
		b.WriteByte(s.sign)
		b.WriteString(line)
	}
}

// extent is where lines are: the first one from 1, and how many, if not one. Of none
// it is the line before them.
func extent(before, count int) string {
	switch count {
	case 0:
		return fmt.Sprintf("%d,0", before)
	case 1:
		return fmt.Sprint(before + 1)
	}
	return fmt.Sprintf("%d,%d", before+1, count)
}
