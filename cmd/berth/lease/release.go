package lease

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ReleaseCommand is berth release.
func ReleaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "end a lease, and its holder if it still runs",
		ArgsUsage: "LEASE|TASK|CONTAINER",
		Description: "The argument is the id of a lease, the id or name of its task, or the id or name of its container of\n" +
			"docker, podman or containerd. The beginning of an id is enough. If the holder still runs, its processes\n" +
			"are ended first, after a question or with --force. A task isn't restarted then, whatever its --restart\n" +
			"says; berth rm removes it. Users without root end leases that they have taken with berth alloc.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "end the holder's processes without asking"}},
		BashComplete: backend.CompleteLeases,
		OnUsageError: verb.WrongUsage,
		Action:       runRelease,
	}
}

func runRelease(c *cli.Context) error {
	if c.NArg() != 1 {
		return verb.WrongCommandLine(c, "release takes one lease, by its id or its holder's name; berth leases shows them")
	}
	node, err := verb.OpenNode(c)
	if err != nil {
		return err
	}
	root := verb.NeedRoot() == nil
	var view ledger.View
	if root {
		view, err = node.View()
	} else {
		view, err = client.New(node.State()).View(c.Context)
	}
	if err != nil {
		return backend.AdviseBroker(err)
	}
	lease, err := findReleasable(c, view, c.Args().First())
	if err != nil {
		return err
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	restarting := findRestarting(backend.TaskStore(conf), lease)
	if lease.Live && !c.Bool("force") {
		holder := fmt.Sprintf("%s has held GPU %s for %s and still runs",
			output.FormatHolder(lease.Owner), output.JoinIndexes(lease.Devices), output.FormatAge(lease.Since, time.Now()))
		if restarting.ID != "" {
			holder += fmt.Sprintf("; it won't be restarted, in spite of --restart %s", restarting.Restart)
		}
		if err := confirmEnding(holder); err != nil {
			return err
		}
	}
	if restarting.ID != "" {
		// Before the processes end, so that the monitor doesn't restart the task.
		if err := backend.TaskStore(conf).MarkStopped(restarting.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if root {
		err = node.Evict(c.Context, lease.Lease)
	} else {
		err = backend.AdviseBroker(client.New(node.State()).Release(c.Context, lease.ID, true))
	}
	if err != nil {
		return err
	}
	fmt.Printf("released %s: GPU %s\n", lease.ID, output.JoinIndexes(lease.Devices))
	if restarting.ID != "" {
		verb.PrintError(fmt.Sprintf("task %s isn't restarted, in spite of --restart %s; berth rm %s removes it", restarting.Name, restarting.Restart, restarting.Name))
	}
	if !root {
		return nil // the broker does
	}
	return node.SweepCommandCgroups(c.Context)
}

// findRestarting returns the task of berth run that holds a lease if its --restart policy would restart it after its
// end, and the zero value otherwise.
func findRestarting(store tasks.Store, l ledger.Status) tasks.Task {
	if l.Owner.EntryPoint != "run" {
		return tasks.Task{}
	}
	t, err := store.Task(l.Owner.Container)
	if err != nil || t.Exit != nil || t.Restart.Policy == "" {
		return tasks.Task{}
	}
	return t
}

// findReleasable is [backend.FindLease] with errors for tasks: a task without a lease, and a rank, whose lease is
// its gang's.
func findReleasable(c *cli.Context, view ledger.View, word string) (ledger.Status, error) {
	l, err := backend.FindLease(c.Context, view, word)
	if err == nil {
		return l, nil
	}
	for _, q := range view.Queue {
		switch {
		case word == "" || q.ID != word && q.Owner.Name != word && q.Owner.Container != word:
		case q.Owner.EntryPoint == "run":
			return l, fmt.Errorf("release %q: it waits, and holds no lease; berth stop %s takes it out of the queue", word, q.Owner.Name)
		default:
			return l, fmt.Errorf("release %q: %s waits, and holds no lease; it leaves the queue when that command is ended", word, output.FormatHolder(q.Owner))
		}
	}
	conf, other := verb.LoadConfig(c)
	if other != nil {
		return l, other
	}
	if t, found := backend.FindUserTask(conf, word); errors.Is(err, ledger.ErrNotFound) && found {
		if t.Lease == nil {
			return l, backend.RefuseUserTask(conf, t)
		}
		return backend.FindLease(c.Context, view, t.Lease.ID)
	}
	if t, other := backend.TaskStore(conf).Find(word); errors.Is(err, ledger.ErrNotFound) && other == nil {
		err = fmt.Errorf("task %s holds no lease; berth stop %s ends it", t.Name, t.Name)
		if t.Member != nil {
			err = fmt.Errorf("it is a rank, and the lease is its gang's; berth release %s ends the gang", t.Member.Gang)
		}
	}
	return l, fmt.Errorf("release %q: %w", word, err)
}

// confirmEnding asks on the terminal whether to end the holder's processes.
func confirmEnding(holder string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return fmt.Errorf("%s; --force ends its processes", holder)
	}
	fmt.Fprint(os.Stderr, printable.Line(holder), ". End its processes? [y/N] ")
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was released")
	}
	return nil
}
