package batches

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/batch"
)

// TestDrawWithoutSize: a terminal that has no size gets the lines of an ordinary one.
func TestDrawWithoutSize(t *testing.T) {
	b := &batch.Batch{Tasks: []batch.Task{{Argv: []string{"true"}}}}
	p := &progress{batch: b, states: batch.NewReplay(b), running: map[int]bool{1: true}}
	for _, size := range [][2]int{{0, 0}, {1, 1}, {80, 0}} {
		if lines := p.drawLines(batch.Counts{Total: 1}, time.Now(), size[0], size[1]); len(lines) != 2 || len(lines[0]) < 40 {
			t.Errorf("%v: %q", size, lines)
		}
	}
}

// TestOrderOfResumedBatch: with --keep-order, output that was printed before the batch was resumed isn't printed again.
func TestOrderOfResumedBatch(t *testing.T) {
	b := &batch.Batch{Tasks: make([]batch.Task, 3)}
	states := batch.NewReplay(b)
	states.States[0].Outcome, states.States[2].Outcome = batch.Succeeded, batch.Succeeded
	c := cli.NewContext(cli.NewApp(), flag.NewFlagSet("", flag.ContinueOnError), nil)
	if p := newPrinter(c, batch.Store{}, b, states); p.next != 2 {
		t.Errorf("task %d is next", p.next)
	}
}

func TestEndsLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	for text, want := range map[string]bool{"": true, "a": false, "a\n": true, "a\nb": false} {
		testutil.Must(t, os.WriteFile(path, []byte(text), 0o600))
		if got := endsLine(path); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
