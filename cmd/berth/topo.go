package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
)

func topoCommand() *cli.Command {
	return &cli.Command{
		Name:  "topo",
		Usage: "show how the node's GPUs and NICs reach each other",
		Description: "The matrix is laid out as that of nvidia-smi topo -m. What is asked for by count is chosen by it:\n" +
			"the GPUs with the most NVLinks and the shortest paths between them, and with nics=auto the NICs at most PXB away.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		OnUsageError: wrongUsage,
		Action: onNode(func(c *cli.Context, node *berth.Node) error {
			inv, err := node.Inventory(c.Context)
			if err != nil {
				return err
			}
			m := topologyOf(inv)
			if c.Bool("json") {
				return printJSON(os.Stdout, m)
			}
			return m.print(os.Stdout)
		}),
	}
}

// topology is the output of berth topo --json.
type topology struct {
	Hostname string  `json:"hostname"`
	Devices  []place `json:"devices"`
	// Matrix has a row and a column for each of the devices, in their order: "X" for
	// the device itself, "NV" and a number of links, a path, or "N/A".
	Matrix [][]string `json:"matrix"`
}

// place is a device and where it is.
type place struct {
	Name string `json:"name"` // in the matrix: "GPU0", "NIC0"
	UUID string `json:"uuid"` // as it is leased
	NIC  string `json:"nic,omitempty"`
	PCI  string `json:"pci,omitempty"`
	CPUs string `json:"cpus,omitempty"` // near it, in list format
	NUMA int    `json:"numa"`           // -1 if unknown
}

const unknownPath = "N/A"

func topologyOf(inv gpu.Inventory) topology {
	t := topology{Hostname: inv.Hostname, Devices: []place{}, Matrix: [][]string{}}
	for i, g := range inv.GPUs {
		t.Devices = append(t.Devices, place{Name: "GPU" + strconv.Itoa(g.Index), UUID: g.UUID, PCI: g.PCI, CPUs: g.CPUs, NUMA: g.NUMA})
		var row []string
		for k := range inv.GPUs {
			row = append(row, pathBetween(inv, i, k))
		}
		for _, n := range inv.NICs {
			row = append(row, pathAt(n.Near, i))
		}
		t.Matrix = append(t.Matrix, row)
	}
	for i, n := range inv.NICs {
		t.Devices = append(t.Devices, place{Name: "NIC" + strconv.Itoa(i), UUID: n.Device(true).UUID, NIC: n.Name, PCI: n.PCI, NUMA: n.NUMA})
		var row []string
		for k := range inv.GPUs {
			row = append(row, pathAt(n.Near, k))
		}
		for k := range inv.NICs {
			if k == i {
				row = append(row, "X")
			} else {
				row = append(row, pathAt(n.Peers, k))
			}
		}
		t.Matrix = append(t.Matrix, row)
	}
	return t
}

// pathBetween says how two GPUs reach each other.
func pathBetween(inv gpu.Inventory, a, b int) string {
	l := inv.Link(a, b)
	switch {
	case a == b:
		return "X"
	case l.NVLinks > 0:
		return "NV" + strconv.Itoa(l.NVLinks)
	}
	return cmp.Or(string(l.PCIe), unknownPath)
}

func pathAt(paths []gpu.Path, i int) string {
	if i >= len(paths) {
		return unknownPath
	}
	return cmp.Or(string(paths[i]), unknownPath)
}

// legend explains the words of the matrix.
const legend = `
Legend:

  X     the device itself
  SYS   from one NUMA node to another
  NODE  within a NUMA node, from one PCIe host bridge to another
  PHB   through a PCIe host bridge, which is mostly the CPU
  PXB   through several PCIe bridges, and no host bridge
  PIX   through one PCIe bridge at most
  NV#   over # NVLinks; behind an NVSwitch, over those that each has to the switch
`

func (t topology) print(w io.Writer) error {
	if len(t.Devices) == 0 {
		_, err := fmt.Fprintln(w, noGPUs)
		return err
	}
	head := []string{""}
	for _, d := range t.Devices {
		head = append(head, d.Name)
	}
	rows := [][]string{append(head, "CPU Affinity", "NUMA Affinity")}
	var nics strings.Builder
	for i, d := range t.Devices {
		row := append([]string{d.Name}, t.Matrix[i]...)
		if d.NIC == "" {
			row = append(row, cmp.Or(d.CPUs, unknownPath), formatNUMA(d.NUMA))
		} else {
			fmt.Fprintf(&nics, "  %s: %s\n", d.Name, d.NIC)
		}
		rows = append(rows, row)
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	text := legend
	if nics.Len() > 0 {
		text += "\nNIC Legend:\n\n" + nics.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

func formatNUMA(node int) string {
	if node < 0 {
		return unknownPath
	}
	return strconv.Itoa(node)
}
