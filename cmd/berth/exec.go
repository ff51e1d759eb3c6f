package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/control"
)

func execCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a command in a task that runs",
		ArgsUsage: "TASK COMMAND [ARG…]",
		Description: "The command gets the task's namespaces, limits, devices and device rules: it can open no GPU that the task\n" +
			"can't. It ends with the task; its exit code is that of berth exec.",
		BashComplete: completeTasks(isRunning),
		OnUsageError: wrongUsage,
		Action:       execInTask,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "don't wait for the command, nor show its output"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set `NAME=VALUE`, or pass NAME on; can be repeated"},
			&cli.StringSliceFlag{Name: "env-file", Usage: "set what `FILE` says, a NAME=VALUE in each line; can be repeated", TakesFile: true},
			&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "connect standard input"},
			&cli.BoolFlag{Name: "privileged", Hidden: true},
			&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give the command a terminal"},
			&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "run as `USER[:GROUP]`, names of the container or numbers"},
			&cli.StringFlag{Name: "workdir", Aliases: []string{"w"}, Usage: "start in `DIR` of the container"},
		},
	}
}

func execInTask(c *cli.Context) error {
	switch {
	case c.NArg() < 2:
		return wrongCommandLine(c, "exec takes a task and a command: berth exec -it TASK bash")
	case c.Bool("privileged"):
		return wrongCommandLine(c, "--privileged: no command gets more than its task has, or it could open others' GPUs; run what needs more on the host")
	}
	store, _, err := openTasks(c)
	if err != nil {
		return exitError{exitBerth, err}
	}
	t, err := store.Find(c.Args().First())
	if err != nil {
		return exitError{exitBerth, err}
	}
	if t.Gang != nil {
		return exitError{exitBerth, fmt.Errorf("task %s is a gang; berth exec %s.%s runs a command in one of its ranks", t.Name, t.Name, t.Gang.Names[0])}
	}
	command := c.Args().Tail()
	if command[0] == "--" && len(command) > 1 { // as in berth run
		command = command[1:]
	}
	in := control.ExecOptions{
		Command: command, Dir: c.String("workdir"), User: c.String("user"),
		Terminal: c.Bool("tty"), Interactive: c.Bool("interactive"), Detach: c.Bool("detach"),
	}
	var o launcher.Options
	if err := readEnv(c, &o); err != nil {
		return exitError{exitBerth, err}
	}
	in.Env = o.Env
	if err := c.Err(); err != nil { // a signal that the launcher wouldn't hear of
		return exitAs(err)
	}
	code, err := store.Exec(context.WithoutCancel(c.Context), t, in)
	if err != nil || code != 0 {
		return exitError{code, err}
	}
	return nil
}
