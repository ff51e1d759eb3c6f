package main

import (
	"context"
	"errors"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// showGangLog shows what all ranks of a gang have written, in the order of time; with
// --follow, what comes is shown as it comes.
func showGangLog(c *cli.Context, k keeper, t tasks.Task, q logs.Query) error {
	p := newRankPrinter(*t.Gang)
	p.stamp = c.Bool("timestamps")
	defer p.end()
	if !c.Bool("follow") {
		return inOrder(readAll(c.Context, k, *t.Gang, q), func(r ranked) error { return p.print(r.rank, r.entry) })
	}
	q.Ended = func() bool { return k.Ended(t.ID) }
	errs := make([]error, len(t.Gang.Ranks))
	var readers sync.WaitGroup
	for i, id := range t.Gang.Ranks {
		readers.Go(func() {
			q := q
			q.Idle = p.idle(i)
			errs[i] = logs.Read(c.Context, k.Path(id, "log"), q, p.of(i))
		})
	}
	readers.Wait()
	return errors.Join(errs...)
}

// readAll reads the logs of all ranks. A log that can't be read is as one that has ended.
func readAll(ctx context.Context, k keeper, g tasks.Gang, q logs.Query) []<-chan ranked {
	all := make([]<-chan ranked, len(g.Ranks))
	for i, id := range g.Ranks {
		entries := make(chan ranked, 64)
		all[i] = entries
		go func() {
			defer close(entries)
			_ = logs.Read(ctx, k.Path(id, "log"), q, func(e logs.Entry) error { // see above
				e.Text = append([]byte(nil), e.Text...)
				select {
				case entries <- ranked{i, e}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	return all
}
