package main

import (
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func stopCommand() *cli.Command {
	return &cli.Command{
		Name:      "stop",
		Usage:     "end tasks: ask first, kill later",
		ArgsUsage: "TASK…",
		Description: "Each task is sent its stop signal, which is SIGTERM unless its image or berth run says another one,\n" +
			"and SIGKILL when it hasn't ended after some time. It isn't started again, whatever its --restart says.\n" +
			"A task whose first process doesn't handle the signal is killed at once: it would never notice.",
		Flags:        []cli.Flag{&cli.IntFlag{Name: "time", Aliases: []string{"timeout", "t"}, Usage: "kill after `SECONDS`, -1 is never (default: what berth run said, or 10)"}},
		OnUsageError: wrongUsage,
		BashComplete: completeTasks(unfinished),
		Action:       stopTasks,
	}
}

func stopTasks(c *cli.Context) error {
	grace := time.Duration(-1) // the task's own
	switch seconds := c.Int("time"); {
	case c.IsSet("time") && seconds < 0:
		grace = control.ForEver
	case c.IsSet("time"):
		grace = time.Duration(seconds) * time.Second
	}
	return onTasks(c, false, func(k keeper, t tasks.Task) func() (string, error) {
		return func() (string, error) { return "", k.Stop(c.Context, t, grace) }
	})
}
