// Command berth gives containerised tasks GPUs of their own: it shows the node's devices and
// their holders, takes and releases leases, and runs containers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/apptainer"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/batches"
	"github.com/berth-gpu/berth/cmd/berth/doctor"
	"github.com/berth-gpu/berth/cmd/berth/guard"
	"github.com/berth-gpu/berth/cmd/berth/images"
	"github.com/berth-gpu/berth/cmd/berth/lease"
	"github.com/berth-gpu/berth/cmd/berth/node"
	"github.com/berth-gpu/berth/cmd/berth/nvidiacli"
	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/run"
	"github.com/berth-gpu/berth/cmd/berth/setup"
	"github.com/berth-gpu/berth/cmd/berth/task"
	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// version is set by the linker.
var version = "unknown"

// about is the first paragraph of help and man page.
const about = "Every task gets dedicated GPUs or MIG slices through a lease, runs\n" +
	"isolated from other tasks' devices, and releases everything when its container\n" +
	"ends."

// minFiles is how many open files Go's runtime and berth need to print an error of one line: with fewer the
// Go runtime prints its stack.
const minFiles = 10

// checkLimits returns an error if this process may open fewer files than minFiles.
func checkLimits() error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max >= minFiles {
		return nil //nolint:nilerr // there is no limit to report
	}
	return fmt.Errorf("only %d files may be open at once: raise the limit (ulimit -n)", files.Max)
}

func main() {
	if err := checkLimits(); err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
		os.Exit(verb.ExitFailure)
	}
	if err := rootless.EnterMountNamespace(); err != nil {
		verb.PrintError(err.Error())
		os.Exit(verb.ExitBerth)
	}
	cli.FlagStringer = describeFlag // the library offers only this global variable
	cli.HelpPrinter = printFitted(cli.HelpPrinter, func() int { return output.NewStyledWriter(os.Stdout).Width })
	ctx, stop := verb.WithInterrupts()
	app := newApp()
	os.Args = nvidiacli.AddVerb(apptainer.AddVerb(os.Args)) // child processes get them, too
	args := orderArguments(app, os.Args)
	narrowApp(app, args)
	err := app.RunContext(ctx, args)
	if err == nil {
		return
	}
	var signal verb.Interrupted
	if (errors.Is(err, context.Canceled) || errors.As(err, &signal)) && errors.As(context.Cause(ctx), &signal) {
		err = verb.WithCode(128+int(signal.Signal), signal)
	}
	code, line := verb.ExitStatus(err)
	if line != "" {
		verb.PrintError(line)
	}
	stop()
	os.Exit(code)
}

func newApp() *cli.App {
	return &cli.App{
		Name:                      "berth",
		Usage:                     "containers with GPUs of their own",
		Version:                   version,
		Description:               about + "\n\n" + verb.ExitTable(),
		Suggest:                   true,
		EnableBashCompletion:      true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              verb.WrongUsage,
		CommandNotFound:           nil,
		Action:                    reportUnknownVerb,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "read the configuration from `FILE`", Value: berth.ConfigPath, EnvVars: []string{"BERTH_CONFIG"}, TakesFile: true},
		}, backend.EngineFlags()...),
		Commands: addExamples(examples(), "", hideHelpVerbs([]*cli.Command{
			run.Command(), forUsers(task.PsCommand()), run.RendezvousCommand(), task.ExecCommand(), forUsers(task.StopCommand()), forUsers(task.KillCommand()), forUsers(task.WaitCommand()), forUsers(task.RmCommand()),
			forUsers(task.LogsCommand()), forUsers(task.AttachCommand()), forUsers(task.InspectCommand()), forUsers(task.StatsCommand()), lease.AllocCommand(), lease.AdoptCommand(), batches.MapCommand(), batches.BatchCommand(), batches.ManageCommand(),
			forUsers(images.PullCommand()), images.LoginCommand(), images.LogoutCommand(), images.ListCommand(), forUsers(images.RmiCommand()), forUsers(images.PruneCommand()), forUsers(images.SystemCommand()),
			apptainer.Command(), nvidiacli.Command(), node.GPUsCommand(), node.TopoCommand(), lease.LeasesCommand(), lease.ReleaseCommand(),
			setup.CDICommand(), node.DiscoverCommand(), lease.RepairCommand(),
			setup.Command(), guard.Command(), doctor.Command(), node.InfoCommand(), node.VersionCommand(),
			backend.EngineFailedCommand(), lease.EnterCommand(), lease.HoldCommand(), apptainer.HoldCommand(), apptainer.StackCommand(), apptainer.InitCommand(), apptainer.JoinCommand(), apptainer.UnpackCommand(), run.LaunchCommand(), rootless.TryCommand(), batches.WorkerCommand(),
		})),
	}
}

// forUsers makes a verb about tasks and images work for users without root, on their own ones.
func forUsers(v *cli.Command) *cli.Command {
	if v.Action != nil {
		v.Action = rootless.Wrap(v.Action)
	}
	for _, sub := range v.Subcommands {
		forUsers(sub)
	}
	return v
}

// hideHelpVerbs keeps the library from adding the subcommands help and h to each verb: a
// task can have such a name.
func hideHelpVerbs(verbs []*cli.Command) []*cli.Command {
	for _, v := range verbs {
		v.HideHelpCommand = true
		hideHelpVerbs(v.Subcommands)
	}
	return verbs
}

// reportUnknownVerb is the action of a command line without a verb, or with an unknown verb.
func reportUnknownVerb(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowAppHelp(c)
	}
	name, next := c.Args().First(), c.Args().Get(1)
	if name == "help" {
		if name, next = next, c.Args().Get(2); name == "" || c.App.Command(name) != nil {
			return showHelp(c, name)
		}
	}
	suggestion := othertools.SuggestVerb(c.App, name, next)
	if _, two := othertools.Groups()[name]; two && next != "" && !verb.IsFlag(next) {
		name += " " + next
	}
	if strings.HasPrefix(suggestion, ": ") { // the suggestion is the command to use
		return verb.UsageError{Err: fmt.Errorf("there is no verb %q%s", name, suggestion)}
	}
	return verb.UsageError{Err: fmt.Errorf("there is no verb %q%s; berth --help lists the verbs", name, suggestion)}
}

// showHelp is the verb help, and -h.
func showHelp(c *cli.Context, verb string) error {
	if verb == "" {
		return cli.ShowAppHelp(c)
	}
	return cli.ShowCommandHelp(c, verb)
}
