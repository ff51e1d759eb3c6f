package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// completionFlag is the last word with which a shell asks what could come next.
const completionFlag = "--generate-bash-completion"

// completeTasks tells a shell the names and ids of tasks. Who may not see them is told
// nothing, for a prompt is no place for errors.
func completeTasks(fit func(tasks.Task) bool) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		store, _, err := openTasks(c)
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

// completeImages tells a shell the names of the images that are here, and what is to go
// by its id.
func completeImages(c *cli.Context) {
	conf, err := loadConfig(c)
	if err != nil || needRoot() != nil {
		return
	}
	all, _, _ := readImages(c, conf) // those that can be read
	for _, i := range all {
		fmt.Fprintln(c.App.Writer, i.Short)
		if c.Command.Name == "rmi" && i.ID != "" {
			fmt.Fprintln(c.App.Writer, shortID(i))
		}
	}
}

func anyTask(tasks.Task) bool { return true }

func isRunning(t tasks.Task) bool { return t.State == tasks.Running }

// isUnfinished are the tasks that can be ended.
func isUnfinished(t tasks.Task) bool { return t.State != tasks.Exited && t.State != tasks.Lost }
