// Package guard is berth guard: the device guard of the whole host.
package guard

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/isolation/deviceguard"
)

// Command is berth guard.
func Command() *cli.Command {
	return &cli.Command{
		Name:  "guard",
		Usage: "close GPUs to every process of the host that holds no lease",
		Description: "The device guard is a BPF program at the root of the cgroup tree. With it, open() of a GPU's node\n" +
			"fails with EPERM in each process without a lease, wherever it was started: a shell, ssh, cron, a\n" +
			"service, or a container of any runtime. Processes of berth alloc, of berth run, and of a container\n" +
			"with a lease can open the devices of their lease. nvidiactl and nvidia-uvm stay open.\n\n" +
			"The guard lasts until berth guard off or a reboot, without a process of berth. guard.exempt in the\n" +
			"configuration names cgroups that need no lease, and guard.root whether root needs one.",
		OnUsageError: verb.WrongUsage,
		Subcommands: []*cli.Command{
			{
				Name: "on", Usage: "close the devices, or update the guard from configuration and leases", OnUsageError: verb.WrongUsage,
				Action: onHost(func(c *cli.Context, n *berth.Node) error { return n.InstallDeviceGuard(c.Context) }),
			},
			{
				Name: "off", Usage: "open the devices to all processes again", OnUsageError: verb.WrongUsage,
				Action: onHost(func(c *cli.Context, n *berth.Node) error { return n.RemoveDeviceGuard(c.Context) }),
			},
			{
				Name: "status", Usage: "show whether the guard is on, and its exceptions", OnUsageError: verb.WrongUsage,
				Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
				Action: onHost(printStatus),
			},
		},
	}
}

// onHost returns the action of a verb that needs root of the host.
func onHost(action func(*cli.Context, *berth.Node) error) cli.ActionFunc {
	return verb.OnNode(func(c *cli.Context, n *berth.Node) error {
		if err := verb.NeedRoot(); err != nil {
			return err
		}
		return action(c, n)
	})
}

// status is the output of berth guard status --json.
type status struct {
	On bool `json:"on"`
	// Root is "allow" or "deny": whether the host's root opens devices without a lease.
	Root    string `json:"root,omitempty"`
	Leases  int    `json:"leases"`
	Exempt  int    `json:"exempt"`
	Guarded int    `json:"guarded"` // entries of devices
}

func printStatus(c *cli.Context, n *berth.Node) error {
	s, err := readStatus(n)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return output.PrintJSON(os.Stdout, s)
	}
	return s.print(os.Stdout)
}

func readStatus(n *berth.Node) (status, error) {
	rules, err := n.DeviceGuard()
	if errors.Is(err, deviceguard.ErrOff) {
		return status{}, nil
	}
	if err != nil {
		return status{}, err
	}
	s := status{On: true, Root: "deny", Guarded: len(rules.Guarded)}
	if rules.RootAllowed {
		s.Root = "allow"
	}
	wanted, wantedErr := n.WantedDeviceGuard() // an error means that the ledger can't be read: every entry counts
	for id, e := range rules.Cgroups {
		switch e.Kind {
		case deviceguard.Lease:
			if _, held := wanted.Cgroups[id]; held || wantedErr != nil {
				s.Leases++
			}
		case deviceguard.Exempt:
			if !n.IsNVMLCgroup(id) {
				s.Exempt++
			}
		}
	}
	return s, nil
}

func (s status) print(w io.Writer) error {
	if !s.On {
		_, err := fmt.Fprintln(w, "off: processes without a lease can open GPUs; berth guard on closes them")
		return err
	}
	root := "the host's root can open every GPU without a lease (guard.root)"
	if s.Root == "deny" {
		root = "root needs a lease too (guard.root)"
	}
	_, err := fmt.Fprintf(w, "on: GPUs open for %s and %s; %s\n", output.FormatCount(s.Leases, "lease"), output.FormatCount(s.Exempt, "exempt cgroup"), root)
	return err
}
