package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func leasesCommand() *cli.Command {
	return &cli.Command{
		Name:         "leases",
		Usage:        "show who holds what, and who waits",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		OnUsageError: wrongUsage,
		Action: onNode(func(c *cli.Context, node *berth.Node) error {
			// A lease whose device has vanished is noticed in a fresh inventory. Without
			// one, as on a machine that lost its driver, the leases are shown all the same.
			_, _ = node.Inventory(c.Context)
			view, err := node.View()
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(os.Stdout, view)
			}
			return printLeases(os.Stdout, view, time.Now())
		}),
	}
}

func printLeases(w io.Writer, view ledger.View, now time.Time) error {
	if len(view.Leases)+len(view.Line) == 0 {
		_, err := fmt.Fprintln(w, "nothing is leased, and nobody waits")
		return err
	}
	rows := [][]string{{"LEASE", "GPU", "REQUEST", "HOLDER", "USER", "FOR", "STATE"}}
	for _, l := range view.Leases {
		rows = append(rows, []string{
			l.ID, indexes(l.Devices), l.Request, holder(l.Owner), userName(l.Owner.UID), age(l.Since, now), stateOf(l),
		})
	}
	for i, q := range view.Line {
		rows = append(rows, []string{
			q.ID, "-", q.Request, holder(q.Owner), userName(q.Owner.UID), age(q.Since, now), fmt.Sprintf("waiting, %s in line", ordinal(i+1)),
		})
	}
	return table(w, rows)
}

func stateOf(l ledger.Status) string {
	state := string(l.State)
	if !l.Live {
		state = "ended, free at the next request"
	}
	if l.Note != "" {
		state += " (" + l.Note + ")"
	}
	return state
}

func indexes(devices []gpu.Device) string { return strings.Join(indexList(devices), ",") }

// indexList has NICs behind all else, and each once: a gang's lease has them part by part.
func indexList(devices []gpu.Device) []string {
	list := []string{}
	var nics []string
	for _, d := range devices {
		switch {
		case !d.IsNIC():
			list = append(list, d.Index)
		case !slices.Contains(nics, d.Index):
			nics = append(nics, d.Index)
		}
	}
	return append(list, nics...)
}

// userName asks the host's program where its file doesn't know: this program is without
// the C library, which finds users of directory services.
func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	ctx, enough := context.WithTimeout(context.Background(), time.Second)
	defer enough()
	out, err := exec.CommandContext(ctx, "getent", "passwd", id).Output()
	if name, _, found := strings.Cut(string(out), ":"); err == nil && found && name != "" {
		return name
	}
	return id
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return strconv.Itoa(n) + suffix
}
