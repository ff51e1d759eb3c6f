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
		Usage: "rebuild a damaged or lost ledger",
		Description: "The old file is kept beside the new one. Leases whose holders live are kept, others are dropped.\n" +
			"With --break-lock the ledger stays as it is: berth ends its own processes that hold one of its locks and\n" +
			"are stopped or frozen, or hold it for ten seconds, and so block other processes.",
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

// breakLocks ends processes of berth's that hold a lock and are stopped, frozen or stuck. Ending a program
// of berth's at any moment leaves the locked files intact.
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
		return fmt.Errorf("find this program: %w", err)
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
		fmt.Println("no lock is blocked")
	}
	return failed
}

// isOwnProgram reports whether an executable is a program of berth's: beside self, the running one, or
// in the directory in which packages install internal programs.
func isOwnProgram(self, program string) bool {
	dirs := []string{filepath.Dir(self), control.InstallDir}
	own := []string{"berth", "berth-runtime", "berth-hook", "berth-monitor", "berth-broker", "berth-containerd"}
	return slices.Contains(dirs, filepath.Dir(program)) && slices.Contains(own, filepath.Base(program))
}

func printRepaired(r ledger.Repaired) {
	if r.Reason == nil {
		fmt.Fprintln(os.Stderr, "the ledger is intact; nothing was changed")
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
