package batches

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/launcher/batch"
)

// progress shows on a terminal how far a batch has come: a bar, and a line for each running task. A nil progress shows nothing.
type progress struct {
	batch  *batch.Batch
	states *batch.Replay

	running map[int]bool // by number
	begun   time.Time
	before  int        // tasks that had ended before
	mu      sync.Mutex // protects lines and drawn
	lines   int        // on the screen
	drawn   time.Time
}

// frameInterval is the time between two frames.
const frameInterval = 100 * time.Millisecond

// newProgress returns nil if standard error is no terminal.
func newProgress(b *batch.Batch, states *batch.Replay) *progress {
	if !term.IsTerminal(int(os.Stderr.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	counts := states.Count()
	return &progress{batch: b, states: states, running: map[int]bool{}, begun: time.Now(), before: counts.Succeeded + counts.Failed + counts.Skipped}
}

// noteTask keeps whether a task runs.
func (p *progress) noteTask(number int, runs bool) {
	switch {
	case p == nil:
	case runs:
		p.running[number] = true
	default:
		delete(p.running, number)
	}
}

// clearScreen removes the progress from the screen. Any goroutine may call it.
func (p *progress) clearScreen() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLines()
}

func (p *progress) clearLines() {
	if p.lines == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\x1b[%dA\r\x1b[J", p.lines)
	p.lines = 0
	p.drawn = time.Time{}
}

// redraw draws the progress, at most once in a frameInterval.
func (p *progress) redraw(counts batch.Counts) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.drawn) < frameInterval {
		return
	}
	p.clearLines()
	width, height, err := term.GetSize(int(os.Stderr.Fd()))
	if err != nil {
		return
	}
	lines := p.drawLines(counts, time.Now(), width, height)
	fmt.Fprint(os.Stderr, strings.Join(lines, "\n")+"\n")
	p.lines, p.drawn = len(lines), time.Now()
}

// A terminal whose size isn't known has 0 columns, such as a serial line.
const defaultWidth, defaultHeight = 80, 24

// drawLines returns the lines for a terminal of this size.
func (p *progress) drawLines(counts batch.Counts, now time.Time, width, height int) (lines []string) {
	if width < 2 || height < 1 {
		width, height = defaultWidth, defaultHeight
	}
	done := counts.Succeeded + counts.Failed + counts.Skipped
	text := fmt.Sprintf(" %d/%d", done, counts.Total)
	if counts.Failed > 0 {
		text += fmt.Sprintf(", %d failed", counts.Failed)
	}
	if fresh := done - p.before; fresh > 0 && done < counts.Total {
		left := now.Sub(p.begun) / time.Duration(fresh) * time.Duration(counts.Total-done)
		text += ", " + left.Round(time.Second).String() + " left"
	}
	bar := max(min(width-len(text)-3, 40), 5)
	full := bar * done / max(counts.Total, 1)
	lines = append(lines, output.CutRight("["+strings.Repeat("#", full)+strings.Repeat("-", bar-full)+"]"+text, width-1))
	running := slices.Collect(maps.Keys(p.running))
	slices.SortFunc(running, func(a, b int) int { return p.states.States[a-1].Slot - p.states.States[b-1].Slot })
	for _, n := range running[:min(len(running), max(height-3, 0))] {
		s := p.states.States[n-1]
		devices := ""
		if s.Devices != "" {
			devices = "GPU " + s.Devices
		}
		t := p.batch.Tasks[n-1]
		what := quoteWords(t.Args)
		if what == "" {
			what = quoteWords(t.Argv)
		}
		line := fmt.Sprintf("  %-8s %-7s %6s  %s", p.batch.Label(n), devices, formatSeconds(now.Sub(s.Started)), output.MakePrintable(what))
		lines = append(lines, output.CutRight(line, width-1))
	}
	return lines
}
