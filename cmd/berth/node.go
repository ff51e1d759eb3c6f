package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// onNode is the action of a verb that takes no argument and looks at the node.
func onNode(action func(*cli.Context, *berth.Node) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		node, err := openNode(c)
		if err != nil {
			return err
		}
		return action(c, node)
	}
}

// onHost is the action of a verb that takes no argument and changes what is the host's.
func onHost(action func(*cli.Context, berth.Config) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		conf, err := loadConfig(c)
		if err != nil {
			return err
		}
		if err := needHost(); err != nil {
			return err
		}
		return action(c, conf)
	}
}

// openNode reads the configuration.
func openNode(c *cli.Context) (*berth.Node, error) {
	conf, err := loadConfig(c)
	if err != nil {
		return nil, err
	}
	return berth.Open(conf)
}

func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return wrongCommandLine(c, fmt.Sprintf("%s takes no argument, got %q", c.Command.Name, c.Args().First()))
	}
	return nil
}

// needRoot returns an error unless this process is root of the host. Only root can change
// the host's device rules and cgroups.
func needRoot() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this needs root, and runs as user %d: use sudo", os.Geteuid())
	}
	return needHost()
}

// needHost returns an error in a user namespace, whose uid 0 is not root of the host.
func needHost() error {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("read the user namespace: %w", err)
	}
	if f := strings.Fields(string(ids)); len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295" {
		return errors.New("uid 0 of a user namespace is not root of the host: run berth outside of it")
	}
	return nil
}

// shared is the lease of the berth alloc around this process: it is neither taken
// nor given back here, and a request chooses among its devices and features.
type shared struct {
	leased
	outer ledger.Lease
}

func (s shared) Acquire(ctx context.Context, owner ledger.Owner, r request.Request) (ledger.Lease, error) {
	inv, err := s.node.Inventory(ctx)
	if err != nil {
		return ledger.Lease{}, err
	}
	lease := s.outer
	lease.Owner.Runtime = owner.Runtime // of the container that is prepared now
	held, err := request.Parse(s.outer.Request)
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("the lease's %w", err)
	}
	if f, missing := featureBeyond(held.Features(), r.Features()); missing {
		return ledger.Lease{}, fmt.Errorf("request %s: the lease %s around this process is without feature %s", r, s.outer.ID, f)
	}
	if r.IsAll() {
		return lease, nil
	}
	lease.Request = r.String()
	inv.NICs = leasedNICs(inv.NICs, s.outer.Devices)
	others := slices.DeleteFunc(inv.Devices(), func(d gpu.Device) bool {
		return slices.ContainsFunc(s.outer.Devices, d.Conflicts)
	})
	lease.Devices, err = match.Choose(inv, r, others)
	if errors.Is(err, match.ErrBusy) { // they are others', and this lease doesn't grow
		return ledger.Lease{}, fmt.Errorf("request %s: the lease %s around this process has GPU %s alone", r, s.outer.ID, joinIndexes(s.outer.Devices))
	}
	return lease, nameRequest(err)
}

func (s shared) Release(context.Context, ledger.Lease) error { return nil }

// leasedNICs returns the node's NICs that are among the devices.
func leasedNICs(nics []gpu.NIC, devices []gpu.Device) []gpu.NIC {
	return slices.DeleteFunc(slices.Clone(nics), func(n gpu.NIC) bool {
		return !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.UUID == n.Device(false).UUID })
	})
}

// maxMinors exceeds the number of device nodes of every feature.
const maxMinors = 4096

// featureBeyond finds a wanted feature that goes beyond those that are held, as imex=0-3 goes
// beyond imex=1-2.
func featureBeyond(held, wanted []gpu.Feature) (f gpu.Feature, found bool) {
	for _, f := range wanted {
		for minor := range maxMinors {
			node := gpu.Extra{Feature: f.Name(), Minor: minor}
			if f.Wants(node) && !slices.ContainsFunc(held, func(h gpu.Feature) bool { return h.Wants(node) }) {
				return f, true
			}
		}
	}
	return "", false
}
