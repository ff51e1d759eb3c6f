// Package output prints for the verbs: tables that fit a terminal, JSON, templates of --format, --watch, colours, and
// the forms of sizes, ages, devices and holders. It escapes control characters, because images and other users write
// some of the text.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/berth-gpu/berth/internal/printable"
)

// PrintTable writes rows in columns; the first row is the heading. Cells are escaped, because
// images and other users have written some of them.
func PrintTable(w io.Writer, rows [][]string) error {
	var table bytes.Buffer
	tw := tabwriter.NewWriter(&table, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable.Escape(cell)
		}
		if _, err := fmt.Fprintln(tw, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// columnGap is the number of blanks between columns, and leastColumn the width of the narrowest wrapped column.
const columnGap, leastColumn = 2, 12

// WrapColumn breaks the cells of one column between words so that the table fits width columns of a terminal. The
// further lines of a cell are rows of their own. A width of 0 means no terminal, and rows stay whole.
func WrapColumn(rows [][]string, column, width int) (wrapped [][]string) {
	if width == 0 {
		return rows
	}
	left := width
	for i := range rows[0] {
		if i != column {
			left -= columnWidth(rows, i) + columnGap
		}
	}
	for _, row := range rows {
		for i, line := range BreakWords(row[column], max(left, leastColumn)) {
			next := make([]string, len(row))
			if i == 0 {
				next = slices.Clone(row)
			}
			next[column] = line
			wrapped = append(wrapped, next)
		}
	}
	return wrapped
}

// PrintJSON writes a value as indented JSON. It escapes also the control characters from DEL
// to U+009F, which JSON allows and terminals obey.
func PrintJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, EscapeJSON(text.String()))
	return err
}

// EscapeJSON escapes the control characters of a JSON text that package json leaves as they are, and terminals interpret.
func EscapeJSON(text string) string {
	var escaped strings.Builder
	for _, r := range text {
		if r >= 0x7f && r <= 0x9f {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.String()
}

// OrDash returns s, or "-" if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// BreakWords is [WrapWords] without a least width.
func BreakWords(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
