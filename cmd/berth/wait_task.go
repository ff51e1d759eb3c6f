package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/tasks"
)

func waitCommand() *cli.Command {
	return &cli.Command{
		Name:         "wait",
		Usage:        "wait until tasks have ended, and print their exit codes",
		ArgsUsage:    "TASK…",
		BashComplete: completeTasks(unfinished),
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			return onTasks(c, false, func(k keeper, t tasks.Task) func() (string, error) {
				return func() (string, error) {
					code, err := k.Wait(c.Context, t)
					return strconv.Itoa(code), err
				}
			})
		},
	}
}
