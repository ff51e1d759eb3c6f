package output

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// rankPrinter prints the output of a gang's ranks, each line behind the rank's name. The
// beginning of a line waits for its rest, unless that takes long or the line is long, so that
// output of other ranks doesn't split the line. It is safe for concurrent use.
type rankPrinter struct {
	mu    sync.Mutex
	names []string // padded to the same width
	roles []int    // the role of each rank, for its colour
	Stamp bool
	// open is the source of a printed line without a line break, nil if there is none.
	open   *source
	waits  map[source]*part
	colour map[*os.File]bool
}

// part is a part of a line that isn't printed yet, because the rest is missing.
type part struct {
	at   time.Time
	text []byte
	old  bool // the log was read to its end once, and the rest wasn't there
}

// longPart is the size in bytes from which a part is printed without its rest.
const longPart = 1 << 20

// source is one stream of a rank.
type source struct {
	rank   int
	stream logs.Stream
}

// NewRankPrinter returns a printer for a gang's ranks, in colours on a terminal.
func NewRankPrinter(g tasks.Gang) *rankPrinter {
	p := &rankPrinter{waits: map[source]*part{}, colour: map[*os.File]bool{os.Stdout: canColour(os.Stdout), os.Stderr: canColour(os.Stderr)}}
	width := 0
	for _, name := range g.Names {
		width = max(width, len(name))
	}
	roles := map[string]int{}
	for _, name := range g.Names {
		role := name[:max(strings.LastIndexByte(name, '-'), 0)]
		if _, ok := roles[role]; !ok {
			roles[role] = len(roles)
		}
		p.roles = append(p.roles, roles[role])
		p.names = append(p.names, fmt.Sprintf("%-*s | ", width, name))
	}
	return p
}

// PrinterFor returns the function that prints a rank's entries.
func (p *rankPrinter) PrinterFor(rank int) func(logs.Entry) error {
	return func(e logs.Entry) error { return p.Print(rank, e) }
}

// Print prints an entry of a rank's log.
func (p *rankPrinter) Print(rank int, e logs.Entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := source{rank, e.Stream}
	if w := p.waits[from]; w != nil {
		e.Time, e.Text = w.at, append(w.text, e.Text...)
		delete(p.waits, from)
	}
	if e.Partial && len(e.Text) < longPart {
		p.waits[from] = &part{at: e.Time, text: slices.Clone(e.Text)}
		return nil
	}
	return p.show(from, e)
}

// FlushWhenIdle returns the function to call each time that a rank's log was read to its end.
// A part that was there at the previous call is printed. The function reports whether a part
// waits for the next call.
func (p *rankPrinter) FlushWhenIdle(rank int) func() bool {
	return func() (waiting bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, stream := range []logs.Stream{logs.Stdout, logs.Stderr} {
			from := source{rank, stream}
			w := p.waits[from]
			switch {
			case w == nil:
			case !w.old:
				w.old, waiting = true, true
			default:
				delete(p.waits, from)
				_ = p.show(from, logs.Entry{Time: w.at, Stream: stream, Partial: true, Text: w.text}) // a closed standard output is no error
			}
		}
		return waiting
	}
}

// show prints an entry, behind the rank's name if the entry begins a line.
func (p *rankPrinter) show(from source, e logs.Entry) error {
	out := streamFile(e.Stream)
	var line []byte
	if p.open == nil || *p.open != from {
		p.endLocked()
		line = append(line, p.rankName(from.rank, out)...)
		if p.Stamp {
			line = append(e.Time.AppendFormat(line, logs.TimeFormat), ' ')
		}
	}
	line = append(line, e.Text...)
	p.open = nil
	if e.Partial {
		p.open = &from
	} else {
		line = append(line, '\n')
	}
	_, err := out.Write(line)
	return err
}

func streamFile(s logs.Stream) *os.File {
	if s == logs.Stderr {
		return os.Stderr
	}
	return os.Stdout
}

// rankName returns the rank's name, coloured on a terminal. The ranks of a role share a colour.
func (p *rankPrinter) rankName(rank int, out *os.File) string {
	if !p.colour[out] {
		return p.names[rank]
	}
	hues := []int{36, 33, 35, 32, 34, 31} // cyan, yellow, magenta, green, blue, red
	return "\x1b[" + strconv.Itoa(hues[p.roles[rank]%len(hues)]) + "m" + p.names[rank] + "\x1b[0m"
}

// End prints all parts, and ends an open line.
func (p *rankPrinter) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for from, w := range p.waits {
		_ = p.show(from, logs.Entry{Time: w.at, Stream: from.stream, Partial: true, Text: w.text}) // a closed standard output is no error
	}
	clear(p.waits)
	p.endLocked()
}

func (p *rankPrinter) endLocked() {
	if p.open != nil {
		_, _ = streamFile(p.open.stream).WriteString("\n") // a closed standard output is no error
		p.open = nil
	}
}

// RankEntry is an entry of the log of a rank.
type RankEntry struct {
	Rank  int
	Entry logs.Entry
}

// MergeInOrder passes the entries of several logs, each of which is in order, to give in the
// order of time.
func MergeInOrder(all []<-chan RankEntry, give func(RankEntry) error) error {
	heads := make([]*RankEntry, len(all))
	for {
		next := -1
		for i, c := range all {
			if heads[i] == nil && c != nil {
				if r, ok := <-c; ok {
					heads[i] = &r
				} else {
					all[i] = nil
				}
			}
			if heads[i] != nil && (next < 0 || heads[i].Entry.Time.Before(heads[next].Entry.Time)) {
				next = i
			}
		}
		if next < 0 {
			return nil
		}
		if err := give(*heads[next]); err != nil {
			return err
		}
		heads[next] = nil
	}
}
