// Package task has the verbs for tasks that exist: ps, inspect, stats, logs, attach, exec, stop, kill, wait and rm.
package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// PsCommand is berth ps.
func PsCommand() *cli.Command {
	return &cli.Command{
		Name:  "ps",
		Usage: "list running tasks, or all",
		Description: "For root it also lists the running tasks of users without root, as far as berth knows them without their\n" +
			"records: not the image, and without a lease no name.\n\n" +
			"FILTER is one of id=, name=REGEXP, image=, label=KEY[=VALUE], status=, exited=CODE and gpu=. A task is shown\n" +
			"if it matches one filter of each kind that is given, and all labels. Labels are the task's and its image's.\n" +
			"REGEXP matches a part of the name; name=^train$ matches the whole name.\n\n" +
			"On a terminal that is too narrow for the table, images and commands are shortened, and CREATED and\n" +
			"COMMAND are left out.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also show tasks that have ended"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print ids only"},
			&cli.StringSliceFlag{Name: "filter", Aliases: []string{"f"}, Usage: "show tasks that match `FILTER`, such as name=train; can be repeated"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			output.FormatFlag("ID", "Status"),
			&cli.IntFlag{Name: "last", Aliases: []string{"n"}, Usage: "show the `N` latest tasks, ended or not"},
			&cli.BoolFlag{Name: "latest", Aliases: []string{"l"}, Usage: "show the latest task, ended or not"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "show images, commands and all columns in full"},
		},
		OnUsageError: verb.WrongUsage,
		Action:       runPs,
	}
}

func runPs(c *cli.Context) error {
	if err := verb.CheckNoArguments(c); err != nil {
		return err
	}
	filters, err := parseFilters(c.StringSlice("filter"))
	if err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	store, conf, err := backend.OpenTasks(c)
	if err != nil {
		return err
	}
	showsEnded := c.Bool("all") || c.Bool("latest") || c.Int("last") > 0 || filters["status"] != nil || filters["exited"] != nil
	list := listing{now: time.Now(), held: readHeldLeases(c.Context, conf), lost: lostGPUs(conf), full: c.Bool("no-trunc")}
	find := store.ListUnended
	if showsEnded {
		find = store.List
	}
	all, broken := find()
	if len(all) == 0 && broken != nil {
		return broken
	}
	for _, t := range all {
		list.add(t)
	}
	if store.Engine == nil && !c.Bool("quiet") { // ids are for verbs, which act on the caller's own tasks
		list.addUserTasks(backend.ListUserTasks(conf))
	}
	list.chooseTasks(c, filters, showsEnded)
	warnOfBrokenTasks(store, all)
	switch {
	case c.Bool("quiet"):
		err = list.printIDs(os.Stdout)
	case output.HasFormat(c):
		err = list.printFormatted(c.Context, os.Stdout, c.String("format"), store)
	case c.Bool("json"):
		err = output.PrintJSON(os.Stdout, list.tasks)
	default:
		err = list.print(os.Stdout, output.NewStyledWriter(os.Stdout).Width)
	}
	return errors.Join(err, broken)
}

// listed is a task in the output of berth ps --json.
type listed struct {
	tasks.Task
	// GPUs are the indexes of the devices that the task holds now.
	GPUs []string `json:"gpus"`
	// LostGPUs are the lost ones of them.
	LostGPUs []string `json:"lost_gpus,omitempty"`
	// Ends is when --timeout ends the task.
	Ends *time.Time `json:"ends,omitempty"`
	// UserName is the name of the user whose task it is.
	UserName string `json:"user_name"`
	// Unread means that it is a task of a user without root, whose record isn't read: the image, for one, is unknown.
	Unread bool `json:"unread,omitempty"`
}

// formatGPUs returns the cell of the column GPU.
func (t listed) formatGPUs() string {
	if len(t.LostGPUs) == 0 {
		return output.OrDash(strings.Join(t.GPUs, ","))
	}
	return strings.Join(t.GPUs, ",") + " (" + strings.Join(t.LostGPUs, ",") + " lost)"
}

// listing is the input of the table of berth ps.
type listing struct {
	tasks []listed
	now   time.Time
	held  map[string]ledger.Lease // leases by id
	lost  map[string]string       // the reasons of lost GPUs by UUID
	full  bool                    // cells aren't cut
	users bool                    // there are tasks of several users
}

// add adds a task to the listing.
func (l *listing) add(t tasks.Task) *listed {
	own := l.devicesOf(t)
	l.tasks = append(l.tasks, listed{
		Task: t, GPUs: output.ListIndexes(own), LostGPUs: l.lostDevices(own), Ends: output.TimeOrNil(t.Deadline()), UserName: output.FindUserName(t.User),
	})
	return &l.tasks[len(l.tasks)-1]
}

// addUserTasks adds the running tasks of users without root, and sorts the listing.
func (l *listing) addUserTasks(all []berth.UserTask) {
	for _, t := range all {
		if slices.ContainsFunc(l.tasks, func(own listed) bool { return own.ID == t.ID && own.Cgroup == t.Cgroup }) {
			continue // root's, in a lease of the user's
		}
		record := tasks.Record{
			ID: t.ID, Name: output.MakePrintable(t.Name), Command: strings.Fields(output.MakePrintable(cmp.Or(t.Command, t.Program))),
			Created: t.Started.UTC().Round(time.Second), User: t.UID, Cgroup: t.Cgroup,
		}
		if t.Ranks != nil {
			record.Gang = &tasks.Gang{Ranks: t.Ranks}
		}
		if t.Lease != nil {
			record.Lease, record.Request = t.Lease.ID, t.Lease.Request
		}
		l.add(tasks.Task{Record: record, Life: &tasks.Life{Started: record.Created}, Status: tasks.Status{State: tasks.Running}}).Unread = true
		l.users = true
	}
	slices.SortStableFunc(l.tasks, func(a, b listed) int { return b.Created.Compare(a.Created) })
}

// listLeases returns the leases of the ledger, or those that the broker shows this user.
func listLeases(ctx context.Context, conf berth.Config) (all []ledger.Lease, err error) {
	session, helped, err := rootless.Open(conf)
	if err != nil {
		return nil, err
	}
	if !helped {
		node, err := berth.Open(conf)
		if err != nil {
			return nil, err
		}
		return node.Leases()
	}
	view, err := session.Client().View(ctx)
	_ = session.Close() // nothing is written
	for _, l := range view.Leases {
		all = append(all, l.Lease)
	}
	return all, err
}

// readHeldLeases returns the leases by id, none if the ledger can't be read.
func readHeldLeases(ctx context.Context, conf berth.Config) map[string]ledger.Lease {
	held := map[string]ledger.Lease{}
	leases, err := listLeases(ctx, conf)
	if err != nil {
		return held
	}
	for _, l := range leases {
		held[l.ID] = l
	}
	return held
}

// lostGPUs returns the reasons of lost GPUs by UUID, none if that is unknown.
func lostGPUs(conf berth.Config) map[string]string {
	node, err := berth.Open(conf)
	if err != nil {
		return nil
	}
	return node.LostGPUs()
}

// lostDevices returns the indexes of devices that are lost.
func (l listing) lostDevices(devices []gpu.Device) []string {
	var lost []gpu.Device
	for _, d := range devices {
		if l.lost[d.UUID] != "" || l.lost[d.Parent] != "" {
			lost = append(lost, d)
		}
	}
	if lost == nil {
		return nil
	}
	return output.ListIndexes(lost)
}

// devicesOf returns the devices of a task that hasn't ended: its own part of the lease, which
// can be that of a berth alloc around it.
func (l listing) devicesOf(t tasks.Task) []gpu.Device {
	if t.State == tasks.Exited || t.State == tasks.Lost {
		return nil
	}
	var own []gpu.Device
	for _, d := range l.held[t.Lease].Devices {
		if len(t.Devices) == 0 || slices.Contains(t.Devices, d.UUID) {
			own = append(own, d)
		}
	}
	return own
}

// chooseTasks removes the tasks that the flags don't ask for.
func (l *listing) chooseTasks(c *cli.Context, filters filters, all bool) {
	last := c.Int("last")
	if c.Bool("latest") {
		last = 1
	}
	kept := []listed{}
	for _, t := range l.tasks {
		running := t.State != tasks.Exited && t.State != tasks.Lost
		if (all || running) && filters.matches(t) {
			kept = append(kept, t)
		}
	}
	if last > 0 && len(kept) > last {
		kept = kept[:last]
	}
	l.tasks = gatherRanks(kept)
}

// gatherRanks moves the ranks of each gang behind the gang, in the order of their numbers.
func gatherRanks(all []listed) []listed {
	ranks := map[string][]listed{}
	for _, t := range all {
		if t.Gang != nil {
			ranks[t.ID] = []listed{}
		}
	}
	kept := all[:0:0]
	for _, t := range all {
		if t.Member != nil && ranks[t.Member.Gang] != nil {
			ranks[t.Member.Gang] = append(ranks[t.Member.Gang], t)
		}
	}
	for _, t := range all {
		if t.Member != nil && ranks[t.Member.Gang] != nil {
			continue
		}
		kept = append(kept, t)
		if t.Gang != nil {
			slices.SortFunc(ranks[t.ID], func(a, b listed) int { return a.Member.Rank - b.Member.Rank })
			kept = append(kept, ranks[t.ID]...)
		}
	}
	return kept
}

func (l listing) printIDs(w io.Writer) error {
	for _, t := range l.tasks {
		if t.Member != nil { // the id of the gang is printed
			continue
		}
		if _, err := fmt.Fprintln(w, t.ID); err != nil {
			return err
		}
	}
	return nil
}

// print writes the table, narrowed to width columns; 0 means no terminal.
func (l listing) print(w io.Writer, width int) error {
	headings := []string{"ID", "IMAGE", "COMMAND", "CREATED", "STATUS", "GPUS", "NAME"}
	if l.users {
		headings = append(headings, "USER")
	}
	rows := [][]string{headings}
	for _, t := range l.tasks {
		row := []string{t.ID, "-", "-", "-", t.String(), "-", "-", t.UserName}
		if t.State != tasks.Broken {
			row = []string{
				t.ID, output.OrDash(l.showImage(t)), l.showCommand(t), output.FormatAge(t.Created, l.now) + " ago",
				output.FormatStatus(t.Task, l.now), t.formatGPUs(), output.OrDash(t.Name), t.UserName,
			}
		}
		rows = append(rows, row[:len(headings)])
	}
	if l.full {
		width = 0
	}
	return output.PrintTable(w, output.FitTable(rows, width,
		output.Narrowing{Heading: "IMAGE", Least: 20, Cut: output.CutLeft},
		output.Narrowing{Heading: "CREATED", Drop: true},
		output.Narrowing{Heading: "COMMAND", Least: 14, Cut: cutCommand},
		output.Narrowing{Heading: "COMMAND", Drop: true},
		output.Narrowing{Heading: "STATUS", Least: 14, Wrap: true},
		output.Narrowing{Heading: "GPUS", Least: 8, Wrap: true},
		output.Narrowing{Heading: "NAME", Least: 12, Wrap: true},
		output.Narrowing{Heading: "USER", Least: 8, Wrap: true},
		output.Narrowing{Heading: "IMAGE", Least: 12, Cut: output.CutLeft},
	))
}

// cutCommand shortens the cell of a command and keeps its quotes.
func cutCommand(cell string, most int) string {
	if text, ok := strings.CutPrefix(cell, `"`); ok {
		return `"` + output.CutRight(strings.TrimSuffix(text, `"`), most-len(`""`)) + `"`
	}
	return output.CutRight(cell, most)
}

// showCommand returns the cell of the column COMMAND.
func (l listing) showCommand(t listed) string {
	if t.Gang != nil {
		return fmt.Sprintf("gang of %d", len(t.Gang.Ranks))
	}
	return `"` + l.shorten(strings.Join(t.Command, " "), 20) + `"`
}

// showImage returns the cell of the column IMAGE.
func (l listing) showImage(t listed) string {
	if l.full {
		return output.MakePrintable(t.Image)
	}
	return output.CutLeft(t.Image, 32)
}

// shorten is [output.CutRight] unless cells aren't cut.
func (l listing) shorten(text string, most int) string {
	if l.full {
		return output.MakePrintable(text)
	}
	return output.CutRight(text, most)
}
