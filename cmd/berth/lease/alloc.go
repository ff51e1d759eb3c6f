package lease

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/cgroup"
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
		Flags:        append([]cli.Flag{&cli.StringFlag{Name: "name", Usage: "the `NAME` that berth leases shows (default: the command's)"}}, waiting.Flags()...),
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
	name := cmp.Or(c.String("name"), filepath.Base(words[1]))
	node, err := verb.OpenNode(c)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	if verb.NeedRoot() != nil {
		return verb.WithBerthCode(holdBrokersLease(c, node, wanted, name, command, words[1:]))
	}
	return verb.WithBerthCode(leasing.Hold(c, node, wanted, name, command, words[1:]))
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
	runtime.LockOSThread() // the death signal belongs to the thread, and execve(2) keeps that of the calling thread
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
