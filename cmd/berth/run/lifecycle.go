package run

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// lifecycleFlags returns the flags about the lifecycle of a task.
func lifecycleFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "run in the background and print the id"},
		&cli.BoolFlag{Name: "rm", Usage: "remove the task at its end, the default without -d; --rm=false keeps it"},
		&cli.StringFlag{Name: "restart", Usage: "start a detached task again: `POLICY` is no, N or on-failure[:N], always or unless-stopped", Value: "no"},
		&cli.StringFlag{Name: "timeout", Usage: "end the task after `TIME`, such as 90s or 2h; a bare number is in seconds"},
		&cli.StringSliceFlag{Name: "log-opt", Usage: "bound a detached task's log: max-size=`SIZE` of a file (default: 10m), max-file=N files (default: 3)"},
	}
}

// readLifecycle reads the flags of lifecycleFlags.
func readLifecycle(c *cli.Context, o *launcher.Options) (err error) {
	o.Keep = c.Bool("detach") && !c.Bool("rm") || c.IsSet("rm") && !c.Bool("rm")
	if o.Restart, err = tasks.ParseRestart(c.String("restart")); err != nil {
		return fmt.Errorf("--restart: %w", err)
	}
	if o.Timeout, err = spec.ParseTime(c.String("timeout")); err != nil {
		return fmt.Errorf("--timeout %q: %w", c.String("timeout"), err)
	}
	for _, opt := range c.StringSlice("log-opt") {
		if err := readLogOption(opt, &o.LogLimit); err != nil {
			return fmt.Errorf("--log-opt %q: %w", opt, err)
		}
	}
	return nil
}

func readLogOption(opt string, limit *tasks.LogLimit) error {
	name, value, _ := strings.Cut(opt, "=")
	switch name {
	case "max-size":
		n, err := spec.ParseSize(value)
		if err != nil {
			return err
		}
		if n < logs.MinSize {
			return fmt.Errorf("a file of the log has at least %dk", logs.MinSize>>10)
		}
		limit.Size = n
	case "max-file":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > 1000 {
			return errors.New("not a number of files from 1 to 1000")
		}
		limit.Files = n
	default:
		return fmt.Errorf("there are max-size and max-file%s", spell.Suggestion(name, "max-size", "max-file"))
	}
	return nil
}
