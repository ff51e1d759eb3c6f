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

// rankPrinter writes what the ranks of a gang write, each line behind the rank's name. A part
// of a line waits for the rest, as long as that comes soon and isn't long: what others write
// meanwhile would cut the line in two.
type rankPrinter struct {
	mu    sync.Mutex
	names []string // padded, with what colours them on each stream
	roles []int    // which role a rank has, for its colour
	Stamp bool
	// open is the source of a line that is shown and isn't ended yet.
	open   *source
	waits  map[source]*part
	colour map[*os.File]bool
}

// part is the beginning of a line, or more of one that is open, which isn't shown yet.
type part struct {
	at   time.Time
	text []byte
	old  bool // the rest isn't there yet, though all was read
}

// longPart is what is shown without the rest.
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

// PrinterFor is what prints a rank's entries.
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

// FlushWhenIdle is called when all was read that a rank has written: what isn't a line by the second
// time won't soon be one. It says whether something waits for the second time.
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
				_ = p.show(from, logs.Entry{Time: w.at, Stream: stream, Partial: true, Text: w.text}) // who doesn't listen misses it
			}
		}
		return waiting
	}
}

// show writes an entry, behind the rank's name if it begins a line.
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

// rankName is the rank's; the ranks of a role share a colour.
func (p *rankPrinter) rankName(rank int, out *os.File) string {
	if !p.colour[out] {
		return p.names[rank]
	}
	hues := []int{36, 33, 35, 32, 34, 31} // cyan, yellow, magenta, green, blue, red
	return "\x1b[" + strconv.Itoa(hues[p.roles[rank]%len(hues)]) + "m" + p.names[rank] + "\x1b[0m"
}

// End shows what waits for its rest, and ends a line that was begun.
func (p *rankPrinter) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for from, w := range p.waits {
		_ = p.show(from, logs.Entry{Time: w.at, Stream: from.stream, Partial: true, Text: w.text}) // who doesn't listen misses it
	}
	clear(p.waits)
	p.endLocked()
}

func (p *rankPrinter) endLocked() {
	if p.open != nil {
		_, _ = streamFile(p.open.stream).WriteString("\n") // who doesn't listen misses it
		p.open = nil
	}
}

// RankEntry is an entry of a rank's log.
type RankEntry struct {
	Rank  int
	Entry logs.Entry
}

// MergeInOrder hands out entries of several logs by time. Each of them is in order by itself.
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
