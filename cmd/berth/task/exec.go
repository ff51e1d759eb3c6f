package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ExecCommand is berth exec.
func ExecCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a command in a running task",
		ArgsUsage: "TASK COMMAND [ARG…]",
		Description: "The command gets the task's namespaces, limits, devices and device rules, so it can open only the task's\n" +
			"GPUs. It ends with the task; berth exec has its exit code. In a task with CAP_SYS_PTRACE it is refused.",
		BashComplete: backend.CompleteTasks(backend.IsRunning),
		OnUsageError: verb.WrongUsage,
		Action:       execInTask,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "don't wait for the command and don't show its output"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set `NAME=VALUE`, or pass NAME on; can be repeated"},
			&cli.StringSliceFlag{Name: "env-file", Usage: "set the variables of `FILE`, a NAME=VALUE in each line; can be repeated", TakesFile: true},
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
		return verb.WrongCommandLine(c, "--privileged: a command gets no more than its task, or it could open GPUs of other tasks; commands that need more can run on the host")
	}
	if os.Geteuid() != 0 {
		return execAsUser(c)
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
	if verb.IsHelped() {
		if err := enterTask(c, t); err != nil {
			return verb.WithCode(verb.ExitBerth, err)
		}
	}
	if err := c.Err(); err != nil { // a signal that came before the launcher handles signals
		return verb.WithBerthCode(err)
	}
	code, err := store.Exec(context.WithoutCancel(c.Context), t, in)
	if err != nil || code != 0 {
		return verb.WithCode(code, addExecHint(code, command, err))
	}
	return nil
}

// execAsUser has root of the task's user namespace run the command. Where the task can't be found, or doesn't run, root of any user
// namespace reports the error.
func execAsUser(c *cli.Context) error {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	store := backend.TaskStore(conf)
	t, err := store.Find(c.Args().First())
	if err != nil || t.Life == nil {
		return rootless.Run(c, conf)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", t.Life.Init.PID))
	if err != nil || !store.Lives(t.Life.Init) {
		return rootless.Run(c, conf)
	}
	defer namespace.Close() // it is only passed on
	return rootless.RunInside(c, conf, namespace)
}

// enterTask moves this process into the cgroup around a task's, from where the runtime can move the command into the container's.
func enterTask(c *cli.Context, t tasks.Task) error {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	group, found := node.FindPlace(t.Cgroup)
	if !found || node.Cgroups().Join(berth.CommandProcesses(group), 0) == nil { // a cgroup that is the user's altogether
		return nil
	}
	session, _, err := rootless.Open(conf)
	if err != nil {
		return err
	}
	_, err = session.Client().Place(c.Context, protocol.Cgroup{Descendant: os.Getpid(), Join: group})
	return errors.Join(backend.AdviseBroker(err), session.Close())
}

// addExecHint adds to an error about a command that isn't there what the command may have been meant to be.
func addExecHint(code int, command []string, err error) error {
	switch {
	case code != verb.ExitNotFound || err == nil:
	case verb.IsFlag(command[0]):
		return fmt.Errorf("%w; flags of berth exec stand before the task", err)
	case len(command) == 1 && strings.ContainsAny(command[0], " \t"):
		return fmt.Errorf("%w; %s", err, verb.ShellHint)
	}
	return err
}
