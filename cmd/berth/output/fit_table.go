package output

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berth-gpu/berth/internal/printable"
)

// Narrowing is one way to make a table narrower. Exactly one of Drop, Cut and Wrap is set.
type Narrowing struct {
	// Heading names the column.
	Heading string
	// Least is the width below which Cut and Wrap don't narrow the column.
	Least int
	// Drop leaves the column out.
	Drop bool
	// Cut shortens a cell to at most `most` runes if it can, see [CutLeft] and [CutRight].
	Cut func(cell string, most int) string
	// Wrap breaks cells into lines, in the middle of words only where a word is longer than the column.
	Wrap bool
}

// FitTable applies the narrowings to a table in order until it fits the width. Each is applied only as far as needed.
// The first row is the heading. A width of 0 means no terminal, and rows stay whole. A table that can't be narrowed
// enough is made as narrow as possible.
func FitTable(rows [][]string, width int, ways ...Narrowing) [][]string {
	if width == 0 || tableWidth(rows) <= width {
		return rows
	}
	needed := 1
	for needed < len(ways) && tableWidth(narrow(rows, width, ways[:needed])) > width {
		needed++
	}
	return narrow(rows, width, ways[:needed])
}

// narrow drops columns first, because the others may fit then without being cut or wrapped.
func narrow(rows [][]string, width int, ways []Narrowing) [][]string {
	rows = cloneRows(rows)
	for _, way := range ways {
		if i := slices.Index(rows[0], way.Heading); way.Drop && i >= 0 {
			for k := range rows {
				rows[k] = slices.Delete(rows[k], i, i+1)
			}
		}
	}
	wrapped := make([]int, len(rows[0])) // widths of wrapped columns
	for _, way := range ways {
		over := tableWidth(rows) - width
		for i, wide := range wrapped {
			if wide > 0 {
				over -= columnWidth(rows, i) - wide
			}
		}
		i := slices.Index(rows[0], way.Heading)
		if over <= 0 || way.Drop || i < 0 {
			continue
		}
		most := max(way.Least, columnWidth(rows, i)-over, utf8.RuneCountInString(way.Heading))
		if way.Wrap {
			wrapped[i] = most
			continue
		}
		for _, row := range rows[1:] {
			row[i] = way.Cut(row[i], most)
		}
	}
	return wrapRows(rows, wrapped)
}

// cloneRows copies rows with their cells escaped, as PrintTable prints them.
func cloneRows(rows [][]string) [][]string {
	all := make([][]string, 0, len(rows))
	for _, row := range rows {
		cells := make([]string, 0, len(row))
		for _, cell := range row {
			cells = append(cells, printable.Escape(cell))
		}
		all = append(all, cells)
	}
	return all
}

// wrapRows breaks the cells of each column with a width into lines. The further lines are rows of their own.
func wrapRows(rows [][]string, widths []int) (all [][]string) {
	for _, row := range rows {
		lines := make([][]string, len(row))
		most := 1
		for i, cell := range row {
			lines[i] = []string{cell}
			if widths[i] > 0 {
				lines[i] = breakText(cell, widths[i])
			}
			most = max(most, len(lines[i]))
		}
		for k := range most {
			next := make([]string, len(row))
			for i := range row {
				if k < len(lines[i]) {
					next[i] = lines[i][k]
				}
			}
			all = append(all, next)
		}
	}
	return all
}

// breakText breaks a text into lines of at most width characters: between words, in a longer word behind a separator
// of names and lists, or else anywhere.
func breakText(text string, width int) (lines []string) {
	for _, line := range BreakWords(text, width) {
		for rest := []rune(line); ; {
			if len(rest) <= width {
				lines = append(lines, string(rest))
				break
			}
			at := width
			for i := width; i > width/2; i-- {
				if strings.ContainsRune(",-_./:;+@", rest[i-1]) {
					at = i
					break
				}
			}
			lines = append(lines, string(rest[:at]))
			rest = rest[at:]
		}
	}
	return lines
}

func tableWidth(rows [][]string) int {
	width := -columnGap
	for i := range rows[0] {
		width += columnWidth(rows, i) + columnGap
	}
	return width
}

func columnWidth(rows [][]string, i int) int {
	widest := 0
	for _, row := range rows {
		widest = max(widest, utf8.RuneCountInString(printable.Escape(row[i])))
	}
	return widest
}
