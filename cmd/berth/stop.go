package main

import (
	"time"

	"github.com/urfave/cli/v2"

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
		Flags:        []cli.Flag{&cli.IntFlag{Name: "time", Aliases: []string{"t"}, Usage: "kill after `SECONDS` (default: what berth run said, or 10)"}},
		OnUsageError: wrongUsage,
		BashComplete: completeTasks(unfinished),
		Action:       stopTasks,
	}
}

func stopTasks(c *cli.Context) error {
	grace := time.Duration(-1)
	if c.IsSet("time") {
		if c.Int("time") < 0 {
			return wrong(c, "--time takes seconds, 0 or more")
		}
		grace = time.Duration(c.Int("time")) * time.Second
	}
	return onTasks(c, false, func(k keeper, t tasks.Task) func() (string, error) {
		return func() (string, error) { return "", k.Stop(c.Context, t, grace) }
	})
}
