package task

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ExecCommand is berth exec.
func ExecCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a command in a task that runs",
		ArgsUsage: "TASK COMMAND [ARG…]",
		Description: "The command gets the task's namespaces, limits, devices and device rules: it can open no GPU that the task\n" +
			"can't. It ends with the task; its exit code is that of berth exec.",
		BashComplete: backend.CompleteTasks(backend.IsRunning),
		OnUsageError: verb.WrongUsage,
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
		return verb.WrongCommandLine(c, "exec takes a task and a command: berth exec -it TASK bash")
	case c.Bool("privileged"):
		return verb.WrongCommandLine(c, "--privileged: no command gets more than its task has, or it could open others' GPUs; run what needs more on the host")
	}
	store, t, err := findTask(c)
	if errors.Is(err, tasks.ErrNotFound) {
		err = othertools.ExplainExecOfImage(c.Args().First(), err)
	}
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	if t.Gang != nil {
		return verb.WithCode(verb.ExitBerth, fmt.Errorf("task %s is a gang; berth exec %s.%s runs a command in one of its ranks", t.Name, t.Name, t.Gang.Names[0]))
	}
	command := c.Args().Tail()
	if command[0] == "--" && len(command) > 1 { // as in berth run
		command = command[1:]
	}
	in := control.ExecOptions{
		Command: command, Dir: c.String("workdir"), User: c.String("user"),
		Terminal: c.Bool("tty"), Interactive: c.Bool("interactive"), Detach: c.Bool("detach"),
	}
	if in.Env, err = verb.ReadEnv(c, os.LookupEnv); err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	if err := c.Err(); err != nil { // a signal that the launcher wouldn't hear of
		return verb.WithBerthCode(err)
	}
	code, err := store.Exec(context.WithoutCancel(c.Context), t, in)
	if err != nil || code != 0 {
		return verb.WithCode(code, err)
	}
	return nil
}
