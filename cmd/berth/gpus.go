package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func gpusCommand() *cli.Command {
	return &cli.Command{
		Name:         "gpus",
		Usage:        "show the node's GPUs and slices, their state and who holds them",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		OnUsageError: wrongUsage,
		Action: onNode(func(c *cli.Context, node *berth.Node) error {
			inv, err := node.Inventory(c.Context) // first, so that the view is of this inventory
			if err != nil {
				return err
			}
			view, err := node.View()
			if err != nil {
				return err
			}
			seen := surveyNode(inv, view)
			seen.addProcesses(findProcesses(c, node, inv))
			if c.Bool("json") {
				return printJSON(os.Stdout, seen)
			}
			return seen.print(os.Stdout, time.Now())
		}),
	}
}

// node is the output of berth gpus --json.
type node struct {
	Hostname   string     `json:"hostname"`
	Driver     gpu.Driver `json:"driver"`
	NVSwitches int        `json:"nvswitches"`
	Devices    []device   `json:"devices"`
	NICs       []gpu.NIC  `json:"nics"`
}

// device is one line of berth gpus.
type device struct {
	gpu.Device
	Minor             int    `json:"minor"`
	PCI               string `json:"pci"`
	ComputeCapability string `json:"compute_capability,omitempty"`
	Memory            uint64 `json:"memory"` // bytes
	NUMA              int    `json:"numa"`
	// State is "free", "leased", "sliced" (leased in slices only), "in use" (by processes without
	// a lease) or "lost".
	State string `json:"state"`
	// Processes compute on the device and are part of no lease's holder.
	Processes []gpu.Process `json:"processes,omitempty"`
	Lost      string        `json:"lost,omitempty"`
	// Lease is who holds it, nil if nobody does.
	Lease *ledger.Status `json:"lease,omitempty"`
	nics  []string
	// slices is how many the GPU is cut into.
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
			sd.Device, sd.Memory, sd.Lease, sd.nics = g.SliceDevice(s), s.Memory, nil, nil
			sd.findLease(view)
			n.Devices = append(n.Devices, sd)
		}
	}
	return n
}

// maxAsking is how long berth gpus waits for NVML.
const maxAsking = 5 * time.Second

// findProcesses returns the processes without a lease that compute on devices, by UUID: as NVML
// says now, or as the last discovery has found them where NVML doesn't answer.
func findProcesses(c *cli.Context, node *berth.Node, inv gpu.Inventory) map[string][]gpu.Process {
	uuids := berth.Computable(inv)
	if !node.AsksForProcesses() || len(uuids) == 0 {
		return nil
	}
	gauge := &probe.Gauge{Child: nvmlChild(c, "meter", maxAsking)}
	defer gauge.Close()
	uses, err := gauge.Measure(c.Context, uuids)
	found := node.Processes()
	if err == nil {
		found, err = node.IdentifyProcesses(uses)
	}
	if err != nil {
		printError("which processes use GPUs is as of the last discovery: " + err.Error())
	}
	return found
}

// addProcesses adds processes without a lease to the devices that they use.
func (n *node) addProcesses(found map[string][]gpu.Process) {
	for i := range n.Devices {
		d := &n.Devices[i]
		if d.Processes = found[d.UUID]; len(d.Processes) > 0 && d.State == "free" {
			d.State = "in use"
		}
	}
}

// findLease finds the live lease that keeps others from the device.
func (d *device) findLease(view ledger.View) {
	d.State = "free"
	for i, l := range view.Leases {
		for _, held := range l.Devices {
			if l.Live && (held.UUID == d.UUID || (d.Parent != "" && held.UUID == d.Parent) || held.HasNodeOf(d.Device)) {
				d.State, d.Lease = "leased", &view.Leases[i]
				return
			}
		}
	}
}

// nearestNICs names the NICs that are closest to GPU i, those across NUMA nodes left out.
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

// noGPUs is what there is to show where the driver is loaded and has nothing to drive.
const noGPUs = "the driver has no GPU; berth doctor looks for the reason"

func (n node) print(w io.Writer, now time.Time) error {
	head := []string{n.Hostname, "driver " + n.Driver.Version}
	if n.Driver.CUDA != "" {
		head = append(head, "CUDA "+n.Driver.CUDA)
	}
	if n.NVSwitches > 0 {
		head = append(head, countOf(n.NVSwitches, "NVSwitch"))
	}
	if len(n.NICs) > 0 {
		head = append(head, countOf(len(n.NICs), "HCA"))
	}
	if _, err := fmt.Fprintf(w, "%s\n\n", strings.Join(head, ", ")); err != nil {
		return err
	}
	if len(n.Devices) == 0 {
		_, err := fmt.Fprintln(w, noGPUs)
		return err
	}
	rows := [][]string{{"GPU", "MODEL", "MEMORY", "NUMA", "NIC", "STATE", "HOLDER", "FOR", "UUID"}}
	for _, d := range n.Devices {
		rows = append(rows, d.tableRow(now))
	}
	return printTable(w, rows)
}

func (d device) tableRow(now time.Time) []string {
	model, numa, nics := d.Model, "-", strings.Join(d.nics, ",")
	if d.Parent != "" {
		model = "  " + d.Profile
	}
	if d.NUMA >= 0 {
		numa = fmt.Sprint(d.NUMA)
	}
	who, since := "-", "-"
	switch {
	case d.Lease != nil:
		who, since = formatHolder(d.Lease.Owner), formatAge(d.Lease.Since, now)
	case d.Lost != "":
		who = "(" + d.Lost + ")"
	case d.State == "in use":
		who = gpu.ListProcesses(d.Processes)
	case d.State == "sliced" && d.slices == 0:
		who = "(MIG mode, no slices)"
	}
	return []string{d.Index, orDash(model), formatMemory(d.Memory), numa, orDash(nics), d.State, who, since, d.UUID}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
