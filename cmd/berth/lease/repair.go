package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
)

// RepairCommand is berth repair.
func RepairCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "rebuild the ledger from what runs, when it can't be trusted any more",
		Description: "The old file is kept beside the new one. Leases whose holders live are kept, others are dropped.\n" +
			"--break-lock does only this: it ends processes of berth's that hold one of its locks and are stopped or\n" +
			"frozen, or hold it for ten seconds. Others wait for them.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "break-lock", Usage: "end processes that were stopped while they held a lock"}},
		OnUsageError: verb.WrongUsage,
		Action: verb.OnNode(func(c *cli.Context, node *berth.Node) error {
			if err := verb.NeedHost(); err != nil {
				return err
			}
			if c.Bool("break-lock") {
				return breakLocks(c)
			}
			done, err := node.Repair(c.Context)
			if err != nil {
				return err
			}
			printRepaired(done)
			list, err := listLeases(c, done.View)
			if err != nil {
				return err
			}
			return list.print(os.Stdout, time.Now(), output.NewStyledWriter(os.Stdout).Width)
		}),
	}
}

// stuckAfter is how long a running process may hold a lock before it counts as stuck.
const stuckAfter = 10 * time.Second

// breakLocks ends processes that block others by a lock. They are programs of berth's: the end of any of
// them leaves the files that are locked in order.
func breakLocks(c *cli.Context) error {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	if err := verb.NeedRoot(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the own program: %w", err)
	}
	isOwn := func(program string) bool { return isOwnProgram(self, program) }
	broken := false
	var failed error
	for _, path := range conf.Locks() {
		ended, err := lock.Break(path, stuckAfter, isOwn)
		for _, h := range ended {
			fmt.Printf("ended %s: it held %s\n", h, path)
			broken = true
		}
		failed = errors.Join(failed, err)
	}
	if !broken && failed == nil {
		fmt.Println("nobody blocks a lock")
	}
	return failed
}

// isOwnProgram says whether an executable is a program of berth's: beside self, the one that runs, or
// where the packages put those that people don't call.
func isOwnProgram(self, program string) bool {
	dirs := []string{filepath.Dir(self), control.InstallDir}
	own := []string{"berth", "berth-runtime", "berth-hook", "berth-monitor", "berth-containerd"}
	return slices.Contains(dirs, filepath.Dir(program)) && slices.Contains(own, filepath.Base(program))
}

func printRepaired(r ledger.Repaired) {
	if r.Reason == nil {
		fmt.Fprintln(os.Stderr, "the ledger is in order; nothing was changed")
		return
	}
	fmt.Fprintf(os.Stderr, "%v; rebuilt with %s\n", r.Reason, output.FormatCount(len(r.Leases), "lease"))
	if r.Moved != "" {
		fmt.Fprintln(os.Stderr, "the damaged ledger is now", r.Moved)
	}
	for _, d := range r.Dropped {
		fmt.Fprintf(os.Stderr, "dropped %s: %s\n", output.OrDash(d.Lease.ID), d.Why)
	}
}
