package batch

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// WriteTimeline writes a picture in SVG: the attempts of a batch over time, a row for each device or, without devices, for each slot. records are those of its journal.
func WriteTimeline(w io.Writer, b *Batch, records []Record, now time.Time) error {
	bars, begin, end := findBars(records, now)
	var rows []string
	for _, bar := range bars {
		for _, row := range bar.rows {
			if !slices.Contains(rows, row) {
				rows = append(rows, row)
			}
		}
	}
	slices.SortFunc(rows, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	const left, width, height, top = 90, 1000, 22, 30
	length := max(end.Sub(begin), time.Millisecond)
	place := func(t time.Time) float64 { return left + float64(t.Sub(begin))/float64(length)*width }
	var text strings.Builder
	fmt.Fprintf(&text, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", left+width+20, top+height*len(rows)+30)
	fmt.Fprintf(&text, "<title>Batch %s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\">%s</text>\n", html.EscapeString(b.Name), html.EscapeString(b.Name))
	for i, row := range rows {
		fmt.Fprintf(&text, `<text x="8" y="%d">%s</text>`+"\n", top+height*i+15, html.EscapeString(row))
	}
	for _, bar := range bars {
		for _, row := range bar.rows {
			fmt.Fprintf(&text, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s" stroke="white" stroke-width="0.5"><title>%s</title></rect>`+"\n",
				place(bar.from), top+height*slices.Index(rows, row)+2, max(place(bar.to)-place(bar.from), 0.5), height-4, bar.chooseColour(), html.EscapeString(bar.describeAttempt(b)))
		}
	}
	fmt.Fprintf(&text, `<text x="%d" y="%d">0 s</text><text x="%d" y="%d" text-anchor="end">%s</text>`+"\n</svg>\n", left, top+height*len(rows)+18, left+width, top+height*len(rows)+18, length.Round(100*time.Millisecond))
	_, err := io.WriteString(w, text.String())
	return err
}

// bar is an attempt in a timeline.
type bar struct {
	number   int
	rows     []string
	from, to time.Time
	exit     *Exit // nil while it runs
}

func (b bar) chooseColour() string {
	switch {
	case b.exit == nil:
		return "#9aa5b1"
	case b.exit.Failed():
		return "#c0392b"
	}
	return "#2e7dd1"
}

func (b bar) describeAttempt(all *Batch) string {
	text := fmt.Sprintf("task %s, %s", all.Label(b.number), b.to.Sub(b.from).Round(time.Millisecond))
	if args := all.Tasks[b.number-1].Args; len(args) > 0 {
		text += ": " + strings.Join(args, " ")
	}
	if b.exit != nil && b.exit.Failed() {
		text += fmt.Sprintf(" (exit code %d)", b.exit.Code)
	}
	return text
}

// findBars returns the attempts, and the time of the first and the last.
func findBars(records []Record, now time.Time) (bars []bar, begin, end time.Time) {
	running := map[int]bar{}
	finish := func(n int, at time.Time, exit *Exit) {
		if b, ok := running[n]; ok {
			b.to, b.exit = at, exit
			bars = append(bars, b)
			delete(running, n)
		}
	}
	for _, r := range records {
		if begin.IsZero() {
			begin = r.At
		}
		end = r.At
		switch r.Kind {
		case Started:
			b := bar{number: r.Task, from: r.At, rows: []string{fmt.Sprintf("slot %d", r.Slot)}}
			if r.Devices != "" {
				b.rows = nil
				for device := range strings.SplitSeq(r.Devices, ",") {
					b.rows = append(b.rows, "GPU "+device)
				}
			}
			running[r.Task] = b
		case Ended:
			finish(r.Task, r.At, r.Exit)
		case Resumed: // the attempts ended at an unknown time
			for n := range running {
				finish(n, r.At, &Exit{Lost: true})
			}
		}
	}
	if len(running) > 0 {
		end = now
	}
	for _, n := range sortedKeys(running) {
		finish(n, end, nil)
	}
	return bars, begin, end
}

func sortedKeys(m map[int]bar) (keys []int) {
	for n := range m {
		keys = append(keys, n)
	}
	slices.Sort(keys)
	return keys
}
