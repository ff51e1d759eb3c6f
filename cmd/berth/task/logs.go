package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// LogsCommand is berth logs.
func LogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show the output of a detached task",
		ArgsUsage: "TASK|BATCH/TASK|BATCH/all",
		Description: "The task's standard output goes to standard output, and its standard error to standard error. The oldest\n" +
			"output is removed when the log has reached its size: see --log-opt of berth run.\n\n" +
			"TIME is how long ago (90s, 2h), a date (2026-01-02), a time (2026-01-02T15:04:05, with or without Z or an\n" +
			"offset), or seconds since 1970.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "show new output until the task has ended"},
			&cli.StringFlag{Name: "since", Usage: "leave out output before `TIME`"},
			&cli.StringFlag{Name: "until", Usage: "leave out output after `TIME`"},
			&cli.StringFlag{Name: "tail", Aliases: []string{"n"}, Usage: "show the last `N` lines", Value: "all"},
			&cli.BoolFlag{Name: "timestamps", Aliases: []string{"t"}, Usage: "print the time of each line"},
		},
		OnUsageError: verb.WrongUsage,
		BashComplete: backend.CompleteTasks(func(t tasks.Task) bool { return t.Detached }),
		Action:       showLog,
	}
}

func showLog(c *cli.Context) error {
	if c.NArg() != 1 {
		return verb.WrongCommandLine(c, "logs takes one task, by id or name; berth ps -a shows them")
	}
	q, err := parseQuery(c, time.Now())
	if err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	if name, task, ok := strings.Cut(c.Args().First(), "/"); ok {
		return showBatchOutput(c, name, task)
	}
	store, t, err := findTask(c)
	if err != nil {
		return err
	}
	if !t.Detached {
		return fmt.Errorf("task %s isn't detached: its output goes to its berth run, and isn't logged", t.Name)
	}
	if t.Gang != nil {
		return showGangLog(c, store, t, q)
	}
	if c.Bool("follow") {
		q.Ended = func() bool { return store.Ended(t.ID) }
	}
	p := &printer{stamp: c.Bool("timestamps"), cut: map[logs.Stream]bool{}}
	err = logs.Read(c.Context, store.Path(t.ID, "log"), q, p.print)
	if err == nil {
		warnOfLostOutput(store, t.ID)
	}
	return err
}

// showBatchOutput prints the output of a task of a batch, or of all of them. Their times aren't recorded.
func showBatchOutput(c *cli.Context, name, task string) error {
	for _, flag := range c.LocalFlagNames() {
		return verb.WrongCommandLine(c, "the output of a batch's tasks is shown without --"+flag)
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	store := backend.BatchStore(conf)
	b, states, err := store.Read(name)
	if err != nil {
		return err
	}
	if task == "all" {
		for i := range b.Tasks {
			backend.PrintTaskOutput(store, name, i+1)
		}
		return nil
	}
	n, err := b.Find(task)
	if err == nil && states.States[n-1].Started.IsZero() {
		err = fmt.Errorf("task %s of batch %s hasn't been started", b.Label(n), name)
	}
	if err == nil {
		backend.PrintTaskOutput(store, name, n)
	}
	return err
}

// warnOfLostOutput prints a warning if the last output of a task may not have been logged.
func warnOfLostOutput(k backend.Tasks, id string) {
	t, err := k.Find(id)
	if err != nil || t.State != tasks.Lost && (t.Exit == nil || !t.Exit.Unknown) {
		return
	}
	verb.PrintError(fmt.Sprintf("task %s: %s; its last output may be missing", t.Name, t.Why))
}

func parseQuery(c *cli.Context, now time.Time) (q logs.Query, err error) {
	q.Tail = -1
	if n := c.String("tail"); n != "all" {
		if q.Tail, err = strconv.Atoi(n); err != nil {
			return q, fmt.Errorf("--tail %q is neither a number of lines nor all", n)
		}
		q.Tail = max(q.Tail, -1) // as docker and podman read it, for all
	}
	if q.Since, err = parseTime(c.String("since"), now); err != nil {
		return q, fmt.Errorf("--since %w", err)
	}
	if q.Until, err = parseTime(c.String("until"), now); err != nil {
		return q, fmt.Errorf("--until %w", err)
	}
	return q, nil
}

// parseTime parses a point in time as docker does: a duration before now, a date or time
// (local without an offset), or seconds since 1970. "" is the zero time.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds >= 0 && seconds < 1<<40 {
		return time.Unix(0, int64(seconds*1e9)), nil
	}
	if ago, err := time.ParseDuration(s); err == nil {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", "2006-01-02Z07:00", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time, such as 10m (ago), 2026-01-02 or 2026-01-02T15:04:05Z", s)
}

// printer prints entries of a log to standard output or standard error, whichever the task
// wrote to.
type printer struct {
	stamp bool
	cut   map[logs.Stream]bool // the last entry of the stream was a part of a line
	line  []byte
}

func (p *printer) print(e logs.Entry) error {
	out := os.Stdout
	if e.Stream == logs.Stderr {
		out = os.Stderr
	}
	p.line = p.line[:0]
	if p.stamp && !p.cut[e.Stream] {
		p.line = append(e.Time.AppendFormat(p.line, logs.TimeFormat), ' ')
	}
	p.line = append(p.line, e.Text...)
	if !e.Partial {
		p.line = append(p.line, '\n')
	}
	p.cut[e.Stream] = e.Partial
	_, err := out.Write(p.line)
	return err
}

// showGangLog prints the output of all ranks of a gang in the order of time. With --follow,
// new output is printed as it is written.
func showGangLog(c *cli.Context, k backend.Tasks, t tasks.Task, q logs.Query) error {
	p := output.NewRankPrinter(*t.Gang)
	p.Stamp = c.Bool("timestamps")
	defer p.End()
	if !c.Bool("follow") {
		return output.MergeInOrder(readRankLogs(c.Context, k, *t.Gang, q), func(r output.RankEntry) error { return p.Print(r.Rank, r.Entry) })
	}
	q.Ended = func() bool { return k.Ended(t.ID) }
	errs := make([]error, len(t.Gang.Ranks))
	var readers sync.WaitGroup
	for i, id := range t.Gang.Ranks {
		readers.Go(func() {
			q := q
			q.Idle = p.FlushWhenIdle(i)
			errs[i] = logs.Read(c.Context, k.Path(id, "log"), q, p.PrinterFor(i))
		})
	}
	readers.Wait()
	return errors.Join(errs...)
}

// readRankLogs reads the logs of all ranks. A log that can't be read counts as ended.
func readRankLogs(ctx context.Context, k backend.Tasks, g tasks.Gang, q logs.Query) []<-chan output.RankEntry {
	all := make([]<-chan output.RankEntry, len(g.Ranks))
	for i, id := range g.Ranks {
		entries := make(chan output.RankEntry, 64)
		all[i] = entries
		go func() {
			defer close(entries)
			_ = logs.Read(ctx, k.Path(id, "log"), q, func(e logs.Entry) error { // see above
				e.Text = append([]byte(nil), e.Text...)
				select {
				case entries <- output.RankEntry{Rank: i, Entry: e}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	return all
}
