package main

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func repairCommand() *cli.Command {
	return &cli.Command{
		Name:         "repair",
		Usage:        "rebuild the ledger from what runs, when it can't be trusted any more",
		Description:  "The old file is kept beside the new one. Leases whose holders live are kept, others are dropped.",
		OnUsageError: wrongUsage,
		Action: onNode(func(c *cli.Context, node *berth.Node) error {
			if err := needHost(); err != nil {
				return err
			}
			done, err := node.Repair(c.Context)
			if err != nil {
				return err
			}
			sayRepaired(done)
			return printLeases(os.Stdout, done.View, time.Now())
		}),
	}
}

func sayRepaired(r ledger.Repaired) {
	if r.Reason == nil {
		fmt.Fprintln(os.Stderr, "the ledger is in order; nothing was changed")
		return
	}
	fmt.Fprintf(os.Stderr, "%v; rebuilt with %s\n", r.Reason, plural(len(r.Leases), "lease"))
	if r.Moved != "" {
		fmt.Fprintln(os.Stderr, "the damaged ledger is now", r.Moved)
	}
	for _, d := range r.Dropped {
		fmt.Fprintf(os.Stderr, "dropped %s: %s\n", orDash(d.Lease.ID), d.Why)
	}
}
