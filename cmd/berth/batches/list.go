package batches

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/batch"
)

// ManageCommand is berth batches.
func ManageCommand() *cli.Command {
	return &cli.Command{
		Name:  "batches",
		Usage: "show, stop and remove one's batches",
		Subcommands: []*cli.Command{
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "list the batches", OnUsageError: verb.WrongUsage, Action: listBatches,
				Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
			},
			{
				Name: "show", Usage: "show the tasks of a batch", ArgsUsage: "BATCH", OnUsageError: verb.WrongUsage, Action: showBatch,
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "json", Usage: "print JSON"}, &cli.BoolFlag{Name: "csv", Usage: "print CSV, with a column for each argument"},
					&cli.StringFlag{Name: "svg", Usage: "write the timeline, tasks over devices, to `FILE`", TakesFile: true},
					&cli.BoolFlag{Name: "failed", Usage: "only tasks that have failed"},
				},
			},
			{
				Name: "stop", Usage: "end a batch when its running tasks have ended", ArgsUsage: "BATCH", OnUsageError: verb.WrongUsage, Action: stopBatch,
				Flags: []cli.Flag{&cli.BoolFlag{Name: "now", Usage: "kill the running tasks"}},
			},
			{Name: "wait", Usage: "wait for the end of a batch", ArgsUsage: "BATCH", OnUsageError: verb.WrongUsage, Action: waitForBatch},
			{Name: "rm", Usage: "remove batches with the output of their tasks", ArgsUsage: "BATCH…", OnUsageError: verb.WrongUsage, Action: removeBatches},
		},
	}
}

func listBatches(c *cli.Context) error {
	store, err := openStore(c)
	if err != nil {
		return err
	}
	names, err := store.List()
	if err != nil {
		return err
	}
	type line struct {
		Name    string       `json:"name"`
		Created time.Time    `json:"created"`
		Running bool         `json:"running"`
		Counts  batch.Counts `json:"tasks"`
	}
	lines := []line{}
	for _, name := range names {
		b, states, err := store.Read(name)
		if err != nil {
			verb.ReportError(err)
			continue
		}
		runs := store.IsRunning(name)
		lines = append(lines, line{name, b.Created, runs, countTasks(states, runs)})
	}
	slices.SortFunc(lines, func(a, b line) int { return b.Created.Compare(a.Created) })
	if c.Bool("json") {
		return output.PrintJSON(os.Stdout, lines)
	}
	rows := [][]string{{"BATCH", "CREATED", "STATE", "TASKS"}}
	for _, l := range lines {
		rows = append(rows, []string{l.Name, output.FormatAge(l.Created, time.Now()) + " ago", stateOf(l.Running, l.Counts), l.Counts.Summary()})
	}
	return output.PrintTable(os.Stdout, rows)
}

// countTasks counts the tasks of a batch. Without a runner none of them is running; the journal of a runner that was killed has no end of them.
func countTasks(states *batch.Replay, runs bool) batch.Counts {
	counts := states.Count()
	if !runs {
		counts.Running = 0
	}
	return counts
}

func stateOf(running bool, c batch.Counts) string {
	switch {
	case running:
		return "running"
	case c.Left() > 0:
		return "interrupted"
	}
	return "ended"
}

// readNamed reads the batch that the command line names.
func readNamed(c *cli.Context) (batch.Store, *batch.Batch, *batch.Replay, error) {
	if c.NArg() == 0 {
		return batch.Store{}, nil, nil, verb.WrongCommandLine(c, c.Command.Name+" takes a batch, by name; berth batches list shows them")
	}
	store, err := openStore(c)
	if err != nil {
		return store, nil, nil, err
	}
	b, states, err := store.Read(c.Args().First())
	return store, b, states, err
}

// result is a task in the output of show.
type result struct {
	Number   int         `json:"number"`
	Name     string      `json:"name,omitempty"`
	State    string      `json:"state"`
	Args     []string    `json:"args,omitempty"`
	Argv     []string    `json:"argv"`
	Devices  string      `json:"devices,omitempty"`
	Attempts int         `json:"attempts"`
	Exit     *batch.Exit `json:"exit,omitempty"`
	Started  *time.Time  `json:"started,omitempty"`
	Ended    *time.Time  `json:"ended,omitempty"`
}

func newResult(b *batch.Batch, n int, s batch.State, runs bool) result {
	r := result{
		Number: n, Name: b.Tasks[n-1].Name, State: string(s.Outcome), Args: b.Tasks[n-1].Args, Argv: b.Tasks[n-1].Argv, Devices: s.Devices, Attempts: s.Attempts,
		Started: output.TimeOrNil(s.Started), Ended: output.TimeOrNil(s.Ended),
	}
	if r.Ended != nil && s.Outcome != batch.Unstarted {
		r.Exit = &s.Exit
	}
	switch {
	case s.Running && runs:
		r.State, r.Ended, r.Exit = "running", nil, nil
	case s.Running:
		r.State = "interrupted"
	case s.Outcome == batch.Pending:
		r.State = "waiting"
	}
	return r
}

func showBatch(c *cli.Context) error {
	store, b, states, err := readNamed(c)
	if err != nil {
		return err
	}
	if path := c.String("svg"); path != "" {
		return writeTimeline(store, b, path)
	}
	runs := store.IsRunning(b.Name)
	results := []result{}
	for i, s := range states.States {
		if !c.Bool("failed") || s.Outcome == batch.Failed {
			results = append(results, newResult(b, i+1, s, runs))
		}
	}
	switch {
	case c.Bool("json"):
		return output.PrintJSON(os.Stdout, results)
	case c.Bool("csv"):
		return printCSV(os.Stdout, results)
	}
	rows := [][]string{{"TASK", "STATE", "GPU", "TIME", "CODE", "COMMAND"}}
	for _, r := range results {
		row := []string{b.Label(r.Number), r.State, output.OrDash(r.Devices), "-", "-", output.MakePrintable(quoteWords(r.Argv))}
		if r.Exit != nil {
			row[3], row[4] = formatSeconds(time.Duration(r.Exit.Seconds*float64(time.Second))), strconv.Itoa(r.Exit.Code)
		}
		rows = append(rows, row)
	}
	width := output.NewStyledWriter(os.Stdout).Width
	if err := output.PrintTable(os.Stdout, output.FitTable(rows, width, output.Narrowing{Heading: "COMMAND", Least: 10, Cut: output.CutRight})); err != nil {
		return err
	}
	counts := countTasks(states, runs)
	_, err = fmt.Printf("%s: %s\n", stateOf(runs, counts), counts.Summary())
	return err
}

// printCSV prints a line for each task, with a column for each argument.
func printCSV(to io.Writer, results []result) error {
	most := 0
	for _, r := range results {
		most = max(most, len(r.Args))
	}
	w := csv.NewWriter(to)
	head := []string{"task", "name", "state", "code", "seconds", "devices", "attempts", "started", "ended"}
	for i := range most {
		head = append(head, fmt.Sprintf("arg%d", i+1))
	}
	_ = w.Write(head) // Error has it
	for _, r := range results {
		row := []string{strconv.Itoa(r.Number), r.Name, r.State, "", "", r.Devices, strconv.Itoa(r.Attempts), formatTime(r.Started), formatTime(r.Ended)}
		if r.Exit != nil {
			row[3], row[4] = strconv.Itoa(r.Exit.Code), strconv.FormatFloat(r.Exit.Seconds, 'f', 3, 64)
		}
		row = append(row, r.Args...)
		for len(row) < len(head) {
			row = append(row, "")
		}
		_ = w.Write(row) // Error has it
	}
	w.Flush()
	return w.Error()
}

func formatTime(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

func writeTimeline(store batch.Store, b *batch.Batch, path string) error {
	var records []batch.Record
	if err := batch.ReadJournal(store.Path(b.Name, "journal"), func(r batch.Record) { records = append(records, r) }); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(batch.WriteTimeline(f, b, records, time.Now()), f.Close())
}

func stopBatch(c *cli.Context) error {
	store, b, _, err := readNamed(c)
	if err != nil {
		return err
	}
	runner, err := store.Runner(b.Name)
	if err != nil {
		return err
	}
	signal := stopSignal
	if c.Bool("now") {
		signal = killSignal
	}
	if err := unix.Kill(runner, signal); err != nil {
		return fmt.Errorf("stop batch %s: %w", b.Name, err)
	}
	return awaitRunner(c, store, b.Name)
}

// awaitRunner waits until no process runs the batch.
func awaitRunner(c *cli.Context, store batch.Store, name string) error {
	for store.IsRunning(name) {
		select {
		case <-c.Done():
			return output.EndWatch(c.Context, c.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// waitForBatch ends with 0 if all tasks have succeeded.
func waitForBatch(c *cli.Context) error {
	store, b, _, err := readNamed(c)
	if err != nil {
		return err
	}
	if err := awaitRunner(c, store, b.Name); err != nil {
		return err
	}
	_, states, err := store.Read(b.Name)
	if err != nil {
		return err
	}
	counts := countTasks(states, false)
	verb.PrintError(fmt.Sprintf("batch %s: %s", b.Name, counts.Summary()))
	if counts.Succeeded < counts.Total {
		return verb.WithCode(verb.ExitFailure, nil)
	}
	return nil
}

func removeBatches(c *cli.Context) error {
	if c.NArg() == 0 {
		return verb.WrongCommandLine(c, "rm takes batches, by name; berth batches list shows them")
	}
	store, err := openStore(c)
	if err != nil {
		return err
	}
	var all error
	for _, name := range c.Args().Slice() {
		err := store.Remove(name)
		if errors.Is(err, batch.ErrLocked) {
			err = fmt.Errorf("batch %s is running: berth batches stop %s ends it", name, name)
		}
		if all = errors.Join(all, err); err == nil {
			fmt.Println(name)
		}
	}
	return all
}
