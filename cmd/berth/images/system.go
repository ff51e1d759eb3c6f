package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// SystemCommand is berth system.
func SystemCommand() *cli.Command {
	return &cli.Command{
		Name: "system", Usage: "show and free berth's disk space",
		HideHelpCommand: true,
		OnUsageError:    verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				name := c.Args().First()
				return verb.WrongCommandLine(c, fmt.Sprintf("there is no verb \"system %s\"%s", name, othertools.SuggestVerb(c.App, "system", name)))
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: []*cli.Command{diskUsageCommand(), systemPruneCommand()},
	}
}

func diskUsageCommand() *cli.Command {
	return &cli.Command{
		Name: "df", Usage: "show the disk space of images and tasks",
		Description: "RECLAIMABLE is the space that berth system prune --all frees: images that no task uses, and files of tasks\n" +
			"that have ended. Files that tasks have written are counted one by one, which takes a while for millions.\n" +
			"With -v, layers that belong to no named image have a table of their own: those of layouts and archives, and of\n" +
			"images whose name now belongs to a newer one.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "show each image, other layer and task, the largest first"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := verb.CheckNoArguments(c); err != nil {
				return err
			}
			k, conf, err := openNativeTasks(c)
			if err != nil {
				return err
			}
			u, unread := measureDisk(c.Context, conf, k)
			switch {
			case c.Bool("json"):
				err = output.PrintJSON(os.Stdout, u)
			case c.Bool("verbose"):
				err = u.printAll(os.Stdout, time.Now())
			default:
				err = u.print(os.Stdout)
			}
			return errors.Join(err, unread)
		},
	}
}

// openNativeTasks is [backend.OpenTasks] for berth's own tasks. With an engine it is an error.
func openNativeTasks(c *cli.Context) (tasks.Store, berth.Config, error) {
	k, conf, err := backend.OpenTasks(c)
	if err == nil && k.Engine != nil {
		err = errors.New("berth system is for berth's own tasks and images; ctr and nerdctl show those of containerd")
	}
	return k.Native, conf, err
}

// diskUsage is the output of berth system df --json. Sizes are in bytes.
type diskUsage struct {
	Total  []diskSum       `json:"total"`
	Images []image.Summary `json:"images"`
	// Layers are those of no named image.
	Layers []image.LayerSummary `json:"layers"`
	Tasks  []taskSize           `json:"tasks"`
}

// diskSum is one line of berth system df.
type diskSum struct {
	Type        string `json:"type"`
	Total       int    `json:"total"`
	Active      int    `json:"active"`
	Size        int64  `json:"size"`
	Reclaimable int64  `json:"reclaimable"`
}

// taskSize is a task with its disk space.
type taskSize struct {
	ID      string      `json:"id"`
	Name    string      `json:"name"`
	Image   string      `json:"image"`
	State   tasks.State `json:"state"`
	Created time.Time   `json:"created"`
	tasks.Size
	status string
}

// ended reports whether the task has ended, so that its files can be removed.
func (t taskSize) ended() bool { return t.State == tasks.Exited || t.State == tasks.Lost }

// measureDisk measures the disk space of images and tasks. unread are the errors of those
// that can't be read.
func measureDisk(ctx context.Context, conf berth.Config, store tasks.Store) (u diskUsage, unread error) {
	images := backend.ImageStores(conf)
	var err1, err2 error
	u.Images, err1 = images.List()
	u.Layers, _ = images.UnnamedLayers(tasksDir(conf)) // Prune returns the same errors
	unused, err2 := images.Prune(image.Selection{Tasks: tasksDir(conf), All: true, DryRun: true})
	slices.SortStableFunc(u.Images, func(a, b image.Summary) int { return cmp.Compare(b.Size, a.Size) })
	all, err3 := store.List()
	written, logs := diskSum{Type: "Tasks", Total: len(all)}, diskSum{Type: "Logs"}
	u.Tasks, err3 = measureTasks(ctx, store, all, err3)
	for _, t := range u.Tasks {
		written.Size += t.Written
		logs.Size += t.Logs
		if t.Logs > 0 {
			logs.Total++
		}
		if t.ended() {
			written.Reclaimable += t.Written
			logs.Reclaimable += t.Logs
			continue
		}
		written.Active++
		if t.Logs > 0 {
			logs.Active++
		}
	}
	u.Total = []diskSum{
		{"Images", len(u.Images), max(0, len(u.Images)-len(unused.Names)), images.Size(), unused.Freed},
		written, logs,
		driverFiles(conf),
	}
	return u, errors.Join(err1, err2, err3)
}

// measureTasks measures the files that tasks have written, and sorts by size, the largest
// first.
func measureTasks(ctx context.Context, store tasks.Store, all []tasks.Task, unread error) ([]taskSize, error) {
	sizes := []taskSize{}
	for _, t := range all {
		size, err := store.Size(ctx, t.ID)
		unread = errors.Join(unread, err)
		sizes = append(sizes, taskSize{t.ID, t.Name, t.Image, t.State, t.Created, size, output.FormatStatus(t, time.Now())})
	}
	slices.SortStableFunc(sizes, func(a, b taskSize) int { return cmp.Compare(b.Written+b.Logs, a.Written+a.Logs) })
	return sizes, unread
}

// driverFiles measures the copies of the driver's files, which tasks share.
func driverFiles(conf berth.Config) diskSum {
	sum := diskSum{Type: "Driver files"}
	dir := filepath.Join(conf.Data, "driver")
	versions, err := filepath.Glob(filepath.Join(dir, "*"))
	if err == nil { // an error means a malformed pattern
		sum.Total = len(versions)
	}
	sum.Size = image.CountSize(dir)
	return sum
}

func (u diskUsage) print(w io.Writer) error {
	rows := [][]string{{"TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"}}
	for _, s := range u.Total {
		part := ""
		if s.Size > 0 {
			part = fmt.Sprintf(" (%d%%)", 100*s.Reclaimable/s.Size)
		}
		rows = append(rows, []string{s.Type, fmt.Sprint(s.Total), fmt.Sprint(s.Active), output.FormatSize(s.Size), output.FormatSize(s.Reclaimable) + part})
	}
	return output.PrintTable(w, rows)
}

func (u diskUsage) printAll(w io.Writer, now time.Time) error {
	rows := [][]string{{"IMAGE", "ID", "CREATED", "SIZE"}}
	for _, i := range u.Images {
		rows = append(rows, []string{i.Short, output.ShortenDigest(i.ID), formatCreated(i, now), formatImageSize(i)})
	}
	if err := output.PrintTable(w, rows); err != nil {
		return err
	}
	if err := u.printLayers(w, now); err != nil {
		return err
	}
	rows = [][]string{{"TASK", "IMAGE", "SIZE", "LOGS", "CREATED", "STATUS", "NAME"}}
	for _, t := range u.Tasks {
		rows = append(rows, []string{
			t.ID, output.CutLeft(t.Image, 32), output.FormatTaskSize(t.Size), output.FormatSize(t.Logs), output.FormatAge(t.Created, now) + " ago", t.status, t.Name,
		})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return output.PrintTable(w, rows)
}

// printLayers prints the table of layers of no named image, if there are any.
func (u diskUsage) printLayers(w io.Writer, now time.Time) error {
	if len(u.Layers) == 0 {
		return nil
	}
	names := map[string]string{}
	for _, t := range u.Tasks {
		names[t.ID] = t.Name
	}
	rows := [][]string{{"LAYER", "UNPACKED", "SIZE", "TASKS", "IMAGE"}}
	for _, l := range u.Layers {
		var users []string
		for _, id := range l.Tasks {
			users = append(users, cmp.Or(names[id], id))
		}
		rows = append(rows, []string{output.ShortenDigest(l.Digest), output.FormatAge(l.Unpacked, now) + " ago", output.FormatSize(l.Size), output.OrDash(strings.Join(users, ",")), output.OrDash(output.CutLeft(l.Image, 40))})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return output.PrintTable(w, rows)
}

func systemPruneCommand() *cli.Command {
	return &cli.Command{
		Name: "prune", Usage: "remove tasks that have ended, and layers that nothing needs",
		Description: "With --all, also removes images that no task uses then. Running tasks stay, and so do their images.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also remove images that no task uses"},
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "for scripts of docker: berth system prune never asks"},
			&cli.StringSliceFlag{Name: "filter", Usage: "`CONDITION` is until=TIME: only tasks that ended before, and images that are older, such as until=24h"},
		},
		OnUsageError: verb.WrongUsage,
		Action:       pruneSystem,
	}
}

func pruneSystem(c *cli.Context) error {
	if err := verb.CheckNoArguments(c); err != nil {
		return err
	}
	now := time.Now()
	sel, err := pruneSelection(c.StringSlice("filter"), now)
	if err == nil && len(sel.Labels) > 0 {
		err = errors.New("--filter label: berth prune chooses images by labels")
	}
	if err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	store, conf, err := openNativeTasks(c)
	if err != nil {
		return err
	}
	age := time.Duration(1) // 1 ns: all that have ended by now
	if !sel.Before.IsZero() {
		age = max(age, now.Sub(sel.Before))
	}
	freed := int64(0)
	err = control.PruneEnded(c.Context, store, control.Retention{Age: age}, func(r tasks.Record) {
		size, _ := store.Size(c.Context, r.ID) // only for the sum that is printed
		freed += size.Written + size.Logs
		fmt.Println(r.Name)
	})
	sel.All, sel.Tasks = c.Bool("all"), tasksDir(conf)
	done, e := backend.ImageStores(conf).Prune(sel)
	for _, name := range done.Names {
		fmt.Println(name)
	}
	fmt.Fprintf(os.Stderr, "freed %s\n", output.FormatSize(freed+done.Freed))
	return errors.Join(err, e)
}
