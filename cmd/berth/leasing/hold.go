package leasing

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/urfave/cli/v2"
)

// Hold takes the lease, which is shown with the name, runs the command in its cgroup, and releases the lease. If
// processes of the command live on, the lease stays until they have ended.
func Hold(c *cli.Context, node *berth.Node, wanted request.Request, name, command string, argv []string) error {
	// Before the lease: the device guard grants devices to an existing cgroup.
	group, err := node.CreateCommandCgroup("", os.Getpid(), 0)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	tree := node.Cgroups()
	lease, err := node.Acquire(c.Context, ledger.Ask{
		Owner:   ledger.Owner{EntryPoint: "alloc", Name: name, Cgroup: group, UID: os.Getuid(), Command: strings.Join(argv, " ")},
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
