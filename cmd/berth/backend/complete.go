package backend

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// CompleteTasks prints the names and ids of tasks for shell completion. On an error it
// prints nothing, because an error would garble the prompt.
func CompleteTasks(fit func(tasks.Task) bool) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		store, _, err := OpenTasks(c)
		if err != nil {
			return
		}
		all, _ := store.List() // those that can be read
		for _, t := range all {
			if !fit(t) {
				continue
			}
			fmt.Fprintln(c.App.Writer, t.Name)
			if t.Name != t.ID {
				fmt.Fprintln(c.App.Writer, t.ID)
			}
		}
	}
}

// CompleteLeases prints the ids of leases, and the names of their holders, for shell completion.
func CompleteLeases(c *cli.Context) {
	node, err := verb.OpenNode(c)
	if err != nil {
		return
	}
	view, err := ViewLeases(c.Context, node)
	if err != nil {
		return
	}
	for _, l := range view.Leases {
		if l.ID == "" {
			continue // a lease of others that isn't shown
		}
		fmt.Fprintln(c.App.Writer, l.ID)
		if l.Owner.Name != "" {
			fmt.Fprintln(c.App.Writer, l.Owner.Name)
		}
	}
}

// CompleteImages prints the names of the stored images for shell completion, and for verbs
// that take ids the ids too.
func CompleteImages(c *cli.Context) {
	conf, err := verb.LoadConfig(c)
	if err != nil || verb.NeedRoot() != nil {
		return
	}
	all, _, _ := ReadImages(c, conf) // those that can be read
	for _, i := range all {
		fmt.Fprintln(c.App.Writer, i.Short)
		if c.Command.Name == "rmi" && i.ID != "" {
			fmt.Fprintln(c.App.Writer, output.ShortenDigest(i.ID))
		}
	}
}

// AnyTask is true for every task.
func AnyTask(tasks.Task) bool { return true }

// IsRunning reports whether a task runs.
func IsRunning(t tasks.Task) bool { return t.State == tasks.Running }

// IsUnfinished reports whether a task has not ended.
func IsUnfinished(t tasks.Task) bool { return t.State != tasks.Exited && t.State != tasks.Lost }
