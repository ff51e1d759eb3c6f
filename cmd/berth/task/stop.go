package task

import (
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// StopCommand is berth stop.
func StopCommand() *cli.Command {
	return &cli.Command{
		Name:      "stop",
		Usage:     "stop tasks by a signal, and kill them after a grace period",
		ArgsUsage: "TASK…",
		Description: "Each task gets its stop signal, which is SIGTERM unless its image or berth run sets another one, and\n" +
			"SIGKILL when it hasn't ended after the grace period. It isn't restarted, whatever its --restart says.\n" +
			"A task whose first process doesn't handle the signal is killed at once: the kernel drops the signal.",
		Flags:        []cli.Flag{&cli.IntFlag{Name: "time", Aliases: []string{"timeout", "t"}, Usage: "kill after `SECONDS`, -1 means never (default: --stop-timeout of berth run, or 10)"}},
		OnUsageError: verb.WrongUsage,
		BashComplete: backend.CompleteTasks(backend.IsUnfinished),
		Action:       stopTasks,
	}
}

func stopTasks(c *cli.Context) error {
	grace := time.Duration(-1) // the task's own grace period
	switch seconds := c.Int("time"); {
	case c.IsSet("time") && seconds < 0:
		grace = control.ForEver
	case c.IsSet("time"):
		grace = time.Duration(seconds) * time.Second
	}
	return forEachTask(c, false, func(k backend.Tasks, t tasks.Task) func() (string, error) {
		return func() (string, error) { return "", k.Stop(c.Context, t, grace) }
	})
}

// KillCommand is berth kill.
func KillCommand() *cli.Command {
	return &cli.Command{
		Name:         "kill",
		Usage:        "send a signal to tasks' first processes",
		ArgsUsage:    "TASK…",
		Flags:        []cli.Flag{&cli.StringFlag{Name: "signal", Aliases: []string{"s"}, Usage: "send `SIGNAL`, a name or a number", Value: "KILL"}},
		BashComplete: backend.CompleteTasks(backend.IsRunning),
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			sig, err := supervise.ParseSignal(c.String("signal"))
			if err != nil {
				return verb.WrongCommandLine(c, err.Error())
			}
			return forEachTask(c, false, func(k backend.Tasks, t tasks.Task) func() (string, error) {
				err := k.Signal(t, sig) // in the order of the command line
				return func() (string, error) { return "", err }
			})
		},
	}
}

// WaitCommand is berth wait.
func WaitCommand() *cli.Command {
	return &cli.Command{
		Name:         "wait",
		Usage:        "wait until tasks have ended, and print their exit codes",
		ArgsUsage:    "TASK…",
		BashComplete: backend.CompleteTasks(backend.IsUnfinished),
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			return forEachTask(c, false, func(k backend.Tasks, t tasks.Task) func() (string, error) {
				return func() (string, error) {
					code, err := k.Wait(c.Context, t)
					return strconv.Itoa(code), err
				}
			})
		},
	}
}

// RmCommand is berth rm.
func RmCommand() *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Usage:     "remove tasks that have ended: their log, exit code and files",
		ArgsUsage: "TASK…",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "kill tasks that still run, and ignore names that don't exist"},
			&cli.BoolFlag{Name: "volumes", Aliases: []string{"v"}, Usage: "for scripts of docker: files of the task are always removed, directories of the host never"},
		},
		BashComplete: backend.CompleteTasks(backend.AnyTask),
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			force := c.Bool("force")
			return forEachTask(c, force, func(k backend.Tasks, t tasks.Task) func() (string, error) {
				return func() (string, error) { return "", k.Remove(c.Context, t, force) }
			})
		},
	}
}
