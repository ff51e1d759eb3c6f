package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
)

func leasesCommand() *cli.Command {
	return &cli.Command{
		Name:         "leases",
		Usage:        "list leases and waiting requests",
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
			l.ID, joinIndexes(l.Devices), l.Request, formatHolder(l.Owner), userName(l.Owner.UID), formatAge(l.Since, now), stateOf(l),
		})
	}
	for i, q := range view.Line {
		rows = append(rows, []string{
			q.ID, "-", q.Request, formatHolder(q.Owner), userName(q.Owner.UID), formatAge(q.Since, now), fmt.Sprintf("waiting, %s in the queue", ordinalOf(i+1)),
		})
	}
	return printTable(w, rows)
}

func stateOf(l ledger.Status) string {
	state := string(l.State)
	switch {
	case !l.Live:
		state = "ended, free at the next request"
	case l.Created:
		state = "created, not started"
	}
	if l.Note != "" {
		state += " (" + l.Note + ")"
	}
	return state
}

func joinIndexes(devices []gpu.Device) string { return strings.Join(indexList(devices), ",") }

// indexList puts NICs last, each once: the lease of a gang names them once per part.
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

// userName asks getent where /etc/passwd lacks the user: berth is static, and only the C
// library finds users of directory services.
func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", "passwd", id).Output()
	if name, _, found := strings.Cut(string(out), ":"); err == nil && found && name != "" {
		return name
	}
	return id
}

func ordinalOf(n int) string {
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

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "end a lease, and its holder if it still runs",
		ArgsUsage: "LEASE",
		Description: "LEASE is the id that berth leases shows, or the beginning of it. If the holder still runs,\n" +
			"its processes are ended first: berth says which, and asks, or needs --force.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "end the holder's processes without asking"}},
		OnUsageError: wrongUsage,
		Action:       runRelease,
	}
}

func runRelease(c *cli.Context) error {
	if c.NArg() != 1 {
		return usageError{errors.New("release takes the id of one lease; berth leases shows them")}
	}
	node, err := openNode(c)
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
	lease, err := pickLease(view, c.Args().First())
	if err != nil {
		return err
	}
	if lease.Live && !c.Bool("force") {
		who := fmt.Sprintf("%s has held GPU %s for %s and still runs",
			formatHolder(lease.Owner), joinIndexes(lease.Devices), formatAge(lease.Since, time.Now()))
		if err := confirm(who); err != nil {
			return err
		}
	}
	if err := node.Evict(c.Context, lease.Lease); err != nil {
		return err
	}
	fmt.Printf("released %s: GPU %s\n", lease.ID, joinIndexes(lease.Devices))
	return sweepAllocCgroups(c.Context, node)
}

// pickLease finds the one lease whose id begins with prefix.
func pickLease(view ledger.View, prefix string) (ledger.Status, error) {
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

// confirm asks on the terminal whether to end the holder's processes.
func confirm(who string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return fmt.Errorf("%s; --force ends its processes", who)
	}
	fmt.Fprint(os.Stderr, printable.Line(who), ". End its processes? [y/N] ")
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was released")
	}
	return nil
}

func repairCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "rebuild the ledger from what runs, when it can't be trusted any more",
		Description: "The old file is kept beside the new one. Leases whose holders live are kept, others are dropped.\n" +
			"--break-lock does only this: it ends processes of berth's that hold one of its locks and are stopped or\n" +
			"frozen, or hold it for ten seconds. Others wait for them.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "break-lock", Usage: "end processes that were stopped while they held a lock"}},
		OnUsageError: wrongUsage,
		Action: onNode(func(c *cli.Context, node *berth.Node) error {
			if err := needHost(); err != nil {
				return err
			}
			if c.Bool("break-lock") {
				return breakLocks(c)
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

// stuckAfter is how long a running process may hold a lock before it counts as stuck.
const stuckAfter = 10 * time.Second

// breakLocks ends processes that block others by a lock. They are programs of berth's: the end of any of
// them leaves the files that are locked in order.
func breakLocks(c *cli.Context) error {
	conf, err := loadConfig(c)
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
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
	dirs := []string{filepath.Dir(strings.TrimSuffix(self, " (deleted)")), control.InstallDir}
	own := []string{"berth", "berth-runtime", "berth-hook", "berth-monitor", "berth-containerd"}
	return slices.Contains(dirs, filepath.Dir(program)) && slices.Contains(own, filepath.Base(program))
}

func sayRepaired(r ledger.Repaired) {
	if r.Reason == nil {
		fmt.Fprintln(os.Stderr, "the ledger is in order; nothing was changed")
		return
	}
	fmt.Fprintf(os.Stderr, "%v; rebuilt with %s\n", r.Reason, countOf(len(r.Leases), "lease"))
	if r.Moved != "" {
		fmt.Fprintln(os.Stderr, "the damaged ledger is now", r.Moved)
	}
	for _, d := range r.Dropped {
		fmt.Fprintf(os.Stderr, "dropped %s: %s\n", orDash(d.Lease.ID), d.Why)
	}
}
