package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/isolation/ledger"
)

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "end a lease whose holder should not have it any more",
		ArgsUsage: "LEASE",
		Description: "LEASE is the id that berth leases shows, or the beginning of it. If the holder still runs,\n" +
			"its processes are ended first: berth says which, and asks, or needs --force.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "end the holder's processes without asking"}},
		OnUsageError: wrongUsage,
		Action:       release,
	}
}

func release(c *cli.Context) error {
	if c.NArg() != 1 {
		return usageError{errors.New("release takes the id of one lease; berth leases shows them")}
	}
	node, err := open(c)
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	view, err := node.View()
	if err != nil {
		return err
	}
	lease, err := pick(view, c.Args().First())
	if err != nil {
		return err
	}
	if lease.Live && !c.Bool("force") {
		who := fmt.Sprintf("%s has held GPU %s for %s and still runs",
			holder(lease.Owner), indexes(lease.Devices), age(lease.Since, time.Now()))
		if err := confirm(who); err != nil {
			return err
		}
	}
	if err := node.Evict(c.Context, lease.Lease); err != nil {
		return err
	}
	fmt.Printf("released %s: GPU %s\n", lease.ID, indexes(lease.Devices))
	return sweep(c.Context, node)
}

// pick finds the one lease whose id begins with prefix.
func pick(view ledger.View, prefix string) (ledger.Status, error) {
	var found []ledger.Status
	for _, l := range view.Leases {
		if prefix != "" && strings.HasPrefix(l.ID, prefix) {
			found = append(found, l)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return ledger.Status{}, fmt.Errorf("release %q: %w", prefix, ledger.ErrNotFound)
	}
	return ledger.Status{}, fmt.Errorf("release %q: %d leases begin so; give more of the id", prefix, len(found))
}

// confirm asks whether the holder's processes shall be ended.
func confirm(who string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return fmt.Errorf("%s; --force ends its processes", who)
	}
	fmt.Fprint(os.Stderr, who, ". End its processes? [y/N] ")
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was released")
	}
	return nil
}
