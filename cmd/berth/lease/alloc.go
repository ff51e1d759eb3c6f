package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// AllocCommand is berth alloc.
func AllocCommand() *cli.Command {
	return &cli.Command{
		Name:      "alloc",
		Usage:     "run a command of the host with a lease",
		ArgsUsage: "REQUEST [--] COMMAND [ARG…]",
		Description: "Runs COMMAND in a cgroup of its own with CUDA_VISIBLE_DEVICES set to the leased devices, and\n" +
			"holds the lease until the last process of that cgroup has ended, even if berth is killed.\n" +
			"berth run inside COMMAND uses this lease. COMMAND can open the other GPUs too unless the device\n" +
			"guard is on (berth guard on).\n\n" +
			"Users without root get their leases from berth-broker, where the admin has started it.\n\n" + waiting.RequestHelp,
		Flags:        waiting.Flags(),
		OnUsageError: verb.WrongUsage,
		Action:       runAlloc,
	}
}

func runAlloc(c *cli.Context) error {
	if err := waiting.CheckFlags(c); err != nil {
		return err
	}
	words := c.Args().Slice()
	if len(words) >= 2 && words[1] == "--" {
		words = append(words[:1], words[2:]...)
	}
	if len(words) < 2 {
		return verb.WrongCommandLine(c, "alloc takes a request and a command: berth alloc 2 -- python train.py")
	}
	wanted, err := request.Parse(words[0])
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	command, err := findCommand(words[1])
	if err != nil {
		if _, forgotten := findCommand(words[0]); forgotten == nil {
			return verb.WithCode(verb.ExitBerth, fmt.Errorf("%s is a command, and the request is missing before it: berth alloc 1 -- %s", words[0], strings.Join(words, " ")))
		}
		return err
	}
	node, err := verb.OpenNode(c)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	if verb.NeedRoot() != nil {
		return verb.WithBerthCode(holdBrokersLease(c, node, wanted, command, words[1:]))
	}
	return verb.WithBerthCode(holdLease(c, node, wanted, command, words[1:]))
}

// Hold runs this program again with a lease: inside, BERTH_LEASE names it. It needs root. argv is the command line, whose first word is shown.
func Hold(c *cli.Context, node *berth.Node, wanted request.Request, argv []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return holdLease(c, node, wanted, self, argv)
}

// holdLease takes the lease, runs the command in its cgroup, and releases the lease. If
// processes of the command live on, the lease stays until they have ended.
func holdLease(c *cli.Context, node *berth.Node, wanted request.Request, command string, argv []string) error {
	// Before the lease: the device guard grants devices to an existing cgroup.
	group, err := node.CreateCommandCgroup("", os.Getpid(), 0)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	tree := node.Cgroups()
	lease, err := node.Acquire(c.Context, ledger.Ask{
		Owner:   ledger.Owner{EntryPoint: "alloc", Name: filepath.Base(argv[0]), Cgroup: group, UID: os.Getuid(), Command: strings.Join(argv, " ")},
		Request: wanted,
		Wait:    waiting.Limit(c),
		Waiting: waiting.NewWaitPrinter(time.Now()),
	})
	if err != nil {
		return errors.Join(verb.NameRequest(err), node.RemoveCommandCgroup(context.WithoutCancel(c.Context), group))
	}
	_ = node.NoteLease(lease) // without it a lost ledger isn't rebuilt before the command has ended
	waiting.NewRemarkPrinter()(node.RemarkOccupied(lease.Devices))
	ctx := context.WithoutCancel(c.Context)
	runErr := runInCgroup(c.Context, tree, berth.CommandProcesses(group), command, argv, append(os.Environ(), berth.CommandEnvironment(lease)...))
	live, err := backend.HasRemaining(tree, group)
	if err != nil { // the lease ends when another request finds that its cgroup is empty
		return errors.Join(runErr, err)
	}
	if live {
		left, _ := tree.PIDs(group) // only shown
		backend.PrintLeft(output.FormatCount(max(len(left), 1), "process"), output.JoinIndexes(lease.Devices))
		return runErr
	}
	if err := node.RemoveCommandCgroup(ctx, group); err != nil {
		return errors.Join(runErr, err)
	}
	err = errors.Join(runErr, node.Release(ctx, lease.ID))
	_ = node.SweepCommandCgroups(ctx) // what others have left: the next command tries again
	return err
}

// runInCgroup runs the command in the cgroup. berth enter joins the cgroup before it execs
// the command, so no instruction of the command runs outside.
func runInCgroup(ctx context.Context, tree cgroup.Hierarchy, group, command string, argv, env []string) error {
	return verb.RunSelf(ctx, exec.Cmd{Args: append([]string{"berth", "enter", tree.Mount, group, command}, argv...), Env: env}, syscall.SIGKILL)
}

// EnterCommand is the hidden verb that berth alloc starts: it joins the cgroup and execs the
// command. Until it has joined, it dies with its parent; afterwards the cgroup proves that the
// holder of the lease lives.
func EnterCommand() *cli.Command {
	return &cli.Command{
		Name: "enter", Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			a := c.Args().Slice()
			if len(a) < 4 {
				return verb.UsageError{Err: errors.New("only berth alloc starts berth enter")}
			}
			tree, err := cgroup.Detect(a[0])
			if err != nil {
				return verb.WithCode(verb.ExitBerth, err)
			}
			if err := tree.Join(a[1], 0); err != nil {
				return verb.WithCode(verb.ExitBerth, err)
			}
			return becomeCommand(c, a[2], a[3:], os.Environ())
		},
	}
}

// becomeCommand executes the command in place of this process, which is in the lease's cgroup.
func becomeCommand(c *cli.Context, command string, argv, env []string) error {
	verb.SettleInterrupts(c.Context) // later signals are for the command
	if err := c.Err(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return verb.WithCode(verb.ExitBerth, fmt.Errorf("outlive the parent: %w", err))
	}
	err := syscall.Exec(command, argv, env)
	return verb.WithCode(verb.ExitNoExec, fmt.Errorf("execute %s: %w", command, err))
}

// findCommand finds the command as a shell does. Its errors have a shell's exit codes.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	if fi, e := os.Stat(name); e == nil && fi.IsDir() && strings.Contains(name, "/") {
		return "", verb.WithCode(verb.ExitNoExec, fmt.Errorf("%s is a directory, not a command", name))
	}
	switch {
	case err == nil:
		return filepath.Abs(path)
	case errors.Is(err, fs.ErrPermission):
		return "", verb.WithCode(verb.ExitNoExec, fmt.Errorf("%s is not executable", name))
	case strings.Contains(name, "/"):
		return "", verb.WithCode(verb.ExitNotFound, fmt.Errorf("there is no command %s", name))
	default:
		return "", verb.WithCode(verb.ExitNotFound, fmt.Errorf("there is no command %q in PATH", name))
	}
}
