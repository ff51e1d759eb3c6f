package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/tasks"
)

func rmCommand() *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Usage:     "remove tasks that have ended: their log, exit code and files",
		ArgsUsage: "TASK…",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "kill those that still run, and say nothing of those that don't exist"},
			&cli.BoolFlag{Name: "volumes", Aliases: []string{"v"}, Usage: "remove what the task wrote, as is always done; directories of the host stay"},
		},
		BashComplete: completeTasks(anyTask),
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			force := c.Bool("force")
			return onTasks(c, force, func(k keeper, t tasks.Task) func() (string, error) {
				return func() (string, error) { return "", k.Remove(c.Context, t, force) }
			})
		},
	}
}
