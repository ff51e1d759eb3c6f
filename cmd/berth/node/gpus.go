// Package node has the verbs that show or take the inventory of this server: gpus, topo, info, version and discover.
package node

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// GPUsCommand is berth gpus.
func GPUsCommand() *cli.Command {
	return &cli.Command{
		Name:  "gpus",
		Usage: "list the node's GPUs and slices, their state and holders",
		Description: "MEMORY is the used and the total memory, UTIL the utilisation as NVML reports it; both are \"-\" if NVML\n" +
			"doesn't report them. UUIDs are shortened to unique beginnings, which requests accept.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			output.FormatFlag("GPU", "State"),
			&cli.BoolFlag{Name: "no-trunc", Usage: "show UUIDs and models in full, and NUMA nodes and NICs"},
			output.WatchFlag(),
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := output.CheckWatch(c); err != nil {
				return err
			}
			return verb.OnNode(showGPUs)(c)
		},
	}
}

func showGPUs(c *cli.Context, node *berth.Node) error {
	m := newMeter(c, node)
	defer m.gauge.Close()
	show := func(w io.Writer, width int) error {
		inv, err := node.Inventory(c.Context) // first: the view refers to its snapshot
		if err != nil {
			return err
		}
		view, err := backend.ViewLeases(c.Context, node)
		if err != nil {
			return err
		}
		now := time.Now()
		seen := surveyNode(inv, view)
		m.addUse(c.Context, &seen, inv)
		switch {
		case output.HasFormat(c):
			return output.PrintTableRows(w, c.String("format"), deviceColumns(), seen.tableRows(now))
		case c.Bool("json"):
			return output.PrintJSON(w, seen)
		}
		return seen.print(w, now, c.Bool("no-trunc"), width)
	}
	return output.ShowOrWatch(c, show)
}

// node is the output of berth gpus --json.
type node struct {
	Hostname   string     `json:"hostname"`
	Driver     gpu.Driver `json:"driver"`
	NVSwitches int        `json:"nvswitches"`
	Devices    []device   `json:"devices"`
	NICs       []gpu.NIC  `json:"nics"`
}

// device is one device in the output of berth gpus.
type device struct {
	gpu.Device
	Minor             int    `json:"minor"`
	PCI               string `json:"pci"`
	ComputeCapability string `json:"compute_capability,omitempty"`
	Memory            uint64 `json:"memory"` // bytes
	NUMA              int    `json:"numa"`
	// MemoryUsed is in bytes, Busy the utilisation in percent. Both are nil if NVML doesn't report them.
	MemoryUsed *uint64 `json:"memory_used,omitempty"`
	Busy       *int    `json:"busy,omitempty"`
	// State is "free", "leased", "sliced" (leased in slices only), "in use" (by processes without
	// a lease) or "lost".
	State string `json:"state"`
	// Processes are those that use the device without a lease.
	Processes []gpu.Process `json:"processes,omitempty"`
	Lost      string        `json:"lost,omitempty"`
	// Lease is the lease of the device, nil if it is free.
	Lease *ledger.Status `json:"lease,omitempty"`
	// User is the name of the lease's user, or the names of the users of Processes.
	User string `json:"user,omitempty"`
	nics []string
	// slices is the number of MIG slices of the GPU.
	slices int
}

func surveyNode(inv gpu.Inventory, view ledger.View) node {
	n := node{Hostname: inv.Hostname, Driver: inv.Driver, NVSwitches: inv.NVSwitches, NICs: inv.NICs, Devices: []device{}}
	for i, g := range inv.GPUs {
		d := device{
			Device: g.Device(), Minor: g.Minor, PCI: g.PCI, ComputeCapability: g.ComputeCapability,
			Memory: g.Memory, NUMA: g.NUMA, Lost: g.Lost, nics: nearestNICs(inv, i), slices: len(g.Slices),
		}
		d.findLease(view)
		switch {
		case g.Lost != "":
			d.State = "lost"
		case g.MIG && d.Lease == nil:
			d.State = "sliced"
		}
		n.Devices = append(n.Devices, d)
		for _, s := range g.Slices {
			sd := d
			sd.Device, sd.Memory, sd.Lease, sd.User, sd.nics = g.SliceDevice(s), s.Memory, nil, "", nil
			sd.findLease(view)
			n.Devices = append(n.Devices, sd)
		}
	}
	return n
}

// addProcesses adds the processes without a lease to the devices that they use.
func (n *node) addProcesses(found map[string][]gpu.Process) {
	for i := range n.Devices {
		d := &n.Devices[i]
		if d.Processes = found[d.UUID]; len(d.Processes) > 0 && d.State == "free" {
			d.State = "in use"
		}
		if d.State != "in use" {
			continue
		}
		var users []string
		for _, p := range d.Processes {
			if !slices.Contains(users, p.User) {
				users = append(users, p.User)
			}
		}
		d.User = strings.Join(users, ",")
	}
}

// findLease sets the live lease of the device, or of a slice or GPU that conflicts with it.
func (d *device) findLease(view ledger.View) {
	d.State = "free"
	for i, l := range view.Leases {
		for _, held := range l.Devices {
			if l.Live && (held.UUID == d.UUID || (d.Parent != "" && held.UUID == d.Parent) || held.HasNodeOf(d.Device)) {
				d.State, d.Lease, d.User = "leased", &view.Leases[i], output.FormatUser(l.Owner)
				return
			}
		}
	}
}

// nearestNICs returns the names of the NICs that are nearest to GPU i. NICs on other NUMA nodes
// don't count.
func nearestNICs(inv gpu.Inventory, i int) []string {
	for _, path := range []gpu.Path{gpu.PathPIX, gpu.PathPXB, gpu.PathPHB, gpu.PathNODE} {
		var names []string
		for _, n := range inv.NICs {
			if i < len(n.Near) && n.Near[i] == path {
				names = append(names, n.Name)
			}
		}
		if names != nil {
			return names
		}
	}
	return nil
}
