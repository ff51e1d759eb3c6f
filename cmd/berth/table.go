package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// printTable writes rows in columns; the first row is the heading. Cells are escaped, for
// strangers have written some of them.
func printTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable.Escape(cell)
		}
		if _, err := fmt.Fprintln(tw, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// printJSON writes a value for programs and people. Beside the control characters that JSON
// escapes anyway, those from DEL to U+009F are escaped: terminals obey them too.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	var escaped strings.Builder
	for _, r := range text.String() {
		if r >= 0x7f && r <= 0x9f {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, escaped.String())
	return err
}

// formatMemory prints bytes as vendors do: an "80 GiB" card reports a little less.
func formatMemory(bytes uint64) string {
	gib := float64(bytes) / (1 << 30)
	switch {
	case bytes == 0:
		return "-"
	case gib < 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", gib), ".0") + " GiB"
	}
	return fmt.Sprintf("%.0f GiB", gib)
}

// formatAge prints how long ago something was, in its two largest units.
func formatAge(since, now time.Time) string {
	d := now.Sub(since).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// formatHolder names the owner of a lease for a person.
func formatHolder(o ledger.Owner) string {
	name := o.Name
	if name == "" {
		name = abbreviateID(o.Container)
	}
	if name == "" {
		name = fmt.Sprintf("pid %d", o.Process.PID)
	}
	return o.Door + " " + name
}

func abbreviateID(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

func countOf(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "s") || strings.HasSuffix(one, "x") || strings.HasSuffix(one, "ch") {
		one += "e"
	}
	return fmt.Sprintf("%d %ss", n, one)
}
