package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func killCommand() *cli.Command {
	return &cli.Command{
		Name:         "kill",
		Usage:        "send a signal to tasks' first processes",
		ArgsUsage:    "TASK…",
		Flags:        []cli.Flag{&cli.StringFlag{Name: "signal", Aliases: []string{"s"}, Usage: "send `SIGNAL`, a name or a number", Value: "KILL"}},
		BashComplete: completeTasks(runs),
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			sig, err := supervise.ParseSignal(c.String("signal"))
			if err != nil {
				return wrong(c, err.Error())
			}
			return onTasks(c, false, func(k keeper, t tasks.Task) func() (string, error) {
				err := k.Signal(t, sig) // in the order of the command line
				return func() (string, error) { return "", err }
			})
		},
	}
}
