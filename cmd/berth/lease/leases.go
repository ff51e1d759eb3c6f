// Package lease has the verbs for leases: alloc, which runs a command of the host with a lease, leases, release and
// repair.
package lease

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// LeasesCommand is berth leases.
func LeasesCommand() *cli.Command {
	return &cli.Command{
		Name:  "leases",
		Usage: "list leases and waiting requests",
		Description: "On a terminal that is too narrow for the table, long requests are shortened and other cells are broken\n" +
			"into lines.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			output.FormatFlag("Lease", "State"),
			&cli.BoolFlag{Name: "no-trunc", Usage: "show the whole table, however wide"},
			output.WatchFlag(),
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := output.CheckWatch(c); err != nil {
				return err
			}
			return verb.OnNode(showLeases)(c)
		},
	}
}

func showLeases(c *cli.Context, node *berth.Node) error {
	show := func(w io.Writer, width int) error {
		// A fresh inventory shows leased devices that have vanished. Without an inventory, as on
		// a machine without a driver, the leases are shown nevertheless.
		_, _ = node.Inventory(c.Context)
		view, err := backend.ViewLeases(c.Context, node)
		if err != nil {
			return err
		}
		list, err := listLeases(c, view)
		if err != nil {
			return err
		}
		switch {
		case output.HasFormat(c):
			return output.PrintTableRows(w, c.String("format"), leaseColumns(), list.rows(time.Now()))
		case c.Bool("json"):
			return output.PrintJSON(w, list)
		case c.Bool("no-trunc"):
			width = 0
		}
		return list.print(w, time.Now(), width)
	}
	return output.ShowOrWatch(c, show)
}

// leaseList is the output of berth leases --json.
type leaseList struct {
	Leases []listedLease   `json:"leases"`
	Queue  []ledger.Waiter `json:"line"`
}

// listedLease is one lease in the output of berth leases --json.
type listedLease struct {
	ledger.Status
	// Ends is when --timeout ends the task that holds the lease.
	Ends *time.Time `json:"ends,omitempty"`
}

// listLeases adds the end of each task's time limit to the leases of a view. Only root can read the
// records of tasks; for other users no lease has an end.
func listLeases(c *cli.Context, view ledger.View) (leaseList, error) {
	conf, err := verb.LoadConfig(c)
	list := leaseList{Leases: []listedLease{}, Queue: view.Queue}
	for _, l := range view.Leases {
		if wasAborted(l) {
			continue
		}
		one := listedLease{Status: l}
		if t, err := backend.TaskStore(conf).Task(l.Owner.Container); l.Owner.EntryPoint == "run" && err == nil {
			one.Ends = output.TimeOrNil(t.Deadline())
		}
		list.Leases = append(list.Leases, one)
	}
	return list, err
}

// wasAborted reports whether a lease is left of a berth run that was killed before its container was recorded: there is no
// task of it, and its devices are free.
func wasAborted(l ledger.Status) bool {
	return l.Owner.EntryPoint == "run" && l.State == ledger.Reserved && l.Phase == ledger.Ended
}

// print prints a table, and below it the notes on single leases, both narrowed to a terminal of so many columns; 0 is
// no terminal.
func (list leaseList) print(w io.Writer, now time.Time, width int) error {
	if len(list.Leases)+len(list.Queue) == 0 {
		_, err := fmt.Fprintln(w, "there are no leases and no waiting requests")
		return err
	}
	rows := append([][]string{output.Headings(leaseColumns())}, list.rows(now)...)
	var notes []string
	for _, l := range list.Leases {
		if l.Note != "" {
			notes = append(notes, output.WrapWords(printable.Line(l.ID+": "+l.Note), width)...)
		}
	}
	rows = output.FitTable(rows, width,
		output.Narrowing{Heading: "REQUEST", Least: 16, Cut: output.CutRight},
		output.Narrowing{Heading: "STATE", Least: 12, Wrap: true},
		output.Narrowing{Heading: "GPU", Least: 8, Wrap: true},
		output.Narrowing{Heading: "HOLDER", Least: 14, Wrap: true},
		output.Narrowing{Heading: "REQUEST", Least: 10, Cut: output.CutRight},
		output.Narrowing{Heading: "USER", Least: 8, Wrap: true},
	)
	if err := output.PrintTable(w, rows); err != nil || notes == nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+strings.Join(notes, "\n"))
	return err
}

// leaseColumns returns the columns of the table of leases.
func leaseColumns() []output.Column {
	return output.NewColumns("Lease", "GPU", "Request", "Holder", "User", "For", "State")
}

// rows returns the cells of the table, waiting requests at its end.
func (list leaseList) rows(now time.Time) (rows [][]string) {
	for _, l := range list.Leases {
		state := string(l.Phase)
		if l.Ends != nil {
			state += ", ends in " + output.FormatAge(now, *l.Ends)
		}
		rows = append(rows, []string{
			output.OrDash(l.ID), output.JoinIndexes(l.Devices), output.OrDash(l.Request), output.FormatHolder(l.Owner), output.FormatUser(l.Owner), output.FormatAge(l.Since, now), state,
		})
	}
	for i, q := range list.Queue {
		state := fmt.Sprintf("waiting, %s in the queue", formatOrdinal(i+1))
		if q.Halted {
			state = "stopped; others overtake it"
		}
		rows = append(rows, []string{
			output.OrDash(q.ID), "-", output.OrDash(q.Request), output.FormatHolder(q.Owner), output.FormatUser(q.Owner), output.FormatAge(q.Since, now), state,
		})
	}
	return rows
}

func formatOrdinal(n int) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return strconv.Itoa(n) + suffix
}
