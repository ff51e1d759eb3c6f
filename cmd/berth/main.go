// Command berth gives containerised tasks GPUs of their own: it shows what the
// node has and who holds it, takes and ends leases, and runs containers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
)

// version is set by the linker.
var version = "unknown"

// Exit codes, besides a command's own. The table is in the help and the man page.
const (
	exitFailure  = 1   // berth could not do what was asked
	exitUsage    = 2   // the command line is wrong
	exitBusy     = 75  // nothing is free and waiting wasn't wanted, or was in vain (EX_TEMPFAIL)
	exitBerth    = 125 // run, exec, alloc: berth failed before the command started
	exitNoExec   = 126 // run, exec, alloc: the command can't be executed
	exitNotFound = 127 // run, exec, alloc: there is no such command
)

// exitCode is one line of the table.
type exitCode struct {
	code int
	text string
}

func exitCodes() []exitCode {
	return []exitCode{
		{0, "success"},
		{exitFailure, "berth could not do it"},
		{exitUsage, "wrong usage (125 of run, exec and alloc)"},
		{exitBusy, "the devices are busy (no --wait, or it timed out)"},
		{exitBerth, "run, exec, alloc: berth failed before the command started"},
		{exitNoExec, "run, exec, alloc: the command can't be executed"},
		{exitNotFound, "run, exec, alloc: there is no such command"},
	}
}

// ownCodes is what the table can't list.
const ownCodes = "Otherwise run, exec and alloc end with the command's own code, or 128 and the signal's number."

func exitTable() string {
	text := "Exit codes:\n"
	for _, e := range exitCodes() {
		text += fmt.Sprintf("  %-4d %s\n", e.code, e.text)
	}
	return text + ownCodes
}

// about is the first paragraph of help and man page.
const about = "Every task gets dedicated GPUs or MIG slices through a lease, runs\n" +
	"isolated from other tasks' devices, and releases everything when its container\n" +
	"ends."

// minFiles is how many open files Go's runtime and berth need for an error of their own: with fewer the
// runtime prints its stack.
const minFiles = 10

// checkLimits returns an error if this process may open too few files to say so later.
func checkLimits() error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max >= minFiles {
		return nil //nolint:nilerr // then there is no limit to tell of
	}
	return fmt.Errorf("only %d files may be open at once: raise the limit (ulimit -n)", files.Max)
}

func main() {
	if err := checkLimits(); err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
		os.Exit(exitFailure)
	}
	cli.FlagStringer = describeFlag // the library has no other way
	ctx, stop := withInterrupts()
	app := newApp()
	args := orderArguments(app, os.Args)
	narrowApp(app, args)
	err := app.RunContext(ctx, args)
	if err == nil {
		return
	}
	var signal interrupted
	if (errors.Is(err, context.Canceled) || errors.As(err, &signal)) && errors.As(context.Cause(ctx), &signal) {
		err = exitError{128 + int(signal.signal), signal}
	}
	code, line := exitStatus(err)
	if line != "" {
		printError(line)
	}
	stop()
	os.Exit(code)
}

func newApp() *cli.App {
	return &cli.App{
		Name:                      "berth",
		Usage:                     "containers with GPUs of their own",
		Version:                   version,
		Description:               about + "\n\n" + exitTable(),
		Suggest:                   true,
		EnableBashCompletion:      true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              wrongUsage,
		CommandNotFound:           nil,
		Action:                    noVerb,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "read the configuration from `FILE`", Value: berth.ConfigPath, EnvVars: []string{"BERTH_CONFIG"}, TakesFile: true},
		}, engineFlags()...),
		Commands: addExamples("", withoutHelp([]*cli.Command{
			runCommand(), psCommand(), rendezvousCommand(), execCommand(), stopCommand(), killCommand(), waitCommand(), rmCommand(),
			logsCommand(), attachCommand(), inspectCommand(), statsCommand(), allocCommand(),
			pullCommand(), imagesCommand(), rmiCommand(), pruneCommand(), systemCommand(),
			gpusCommand(), topoCommand(), leasesCommand(), releaseCommand(),
			cdiCommand(), discoverCommand(), repairCommand(),
			setupCommand(), doctorCommand(), infoCommand(), versionCommand(),
			engineFailedCommand(), enterCommand(), launchCommand(),
		})),
	}
}

// withoutHelp: the library would give each verb one below it that is called help, or h.
// Tasks are called so, too.
func withoutHelp(verbs []*cli.Command) []*cli.Command {
	for _, v := range verbs {
		v.HideHelpCommand = true
		withoutHelp(v.Subcommands)
	}
	return verbs
}

// noVerb is reached without a verb, or with one that doesn't exist.
func noVerb(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowAppHelp(c)
	}
	name := c.Args().First()
	if name == "help" {
		if name = c.Args().Get(1); name == "" || c.App.Command(name) != nil {
			return showHelp(c, name)
		}
	}
	return usageError{fmt.Errorf("there is no verb %q%s; berth --help lists the verbs", name, suggestVerb(c.App, name, c.Args().Get(1)))}
}

// showHelp is what people type before they know of --help.
func showHelp(c *cli.Context, verb string) error {
	if verb == "" {
		return cli.ShowAppHelp(c)
	}
	return cli.ShowCommandHelp(c, verb)
}

// loadConfig reads the configuration that the command line names.
func loadConfig(c *cli.Context) (berth.Config, error) { return berth.LoadConfig(c.String("config")) }
