package node

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
)

// TopoCommand is berth topo.
func TopoCommand() *cli.Command {
	return &cli.Command{
		Name:  "topo",
		Usage: "show how the node's GPUs and NICs are connected",
		Description: "The matrix has the form of nvidia-smi topo -m; if that is wider than the terminal, its words are\n" +
			"shortened. Requests by count are matched by it: they get the GPUs with the most NVLinks and the\n" +
			"shortest paths between them, and with nics=auto the NICs at most PXB away.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}, &cli.BoolFlag{Name: "no-trunc", Usage: "show the whole matrix, however wide"}},
		OnUsageError: verb.WrongUsage,
		Action: verb.OnNode(func(c *cli.Context, node *berth.Node) error {
			inv, err := node.Inventory(c.Context)
			if err != nil {
				return err
			}
			m := topologyOf(inv)
			if c.Bool("json") {
				return output.PrintJSON(os.Stdout, m)
			}
			return m.print(os.Stdout, c.Bool("no-trunc"), cmp.Or(output.NewStyledWriter(os.Stdout).Width, usualWidth))
		}),
	}
}

// topology is the output of berth topo --json.
type topology struct {
	Hostname string           `json:"hostname"`
	Devices  []topologyDevice `json:"devices"`
	// Matrix has a row and a column for each of the devices, in their order: "X" for
	// the device itself, "NV" and a number of links, a path, or "N/A".
	Matrix [][]string `json:"matrix"`
}

// topologyDevice is a device and its position.
type topologyDevice struct {
	Name string `json:"name"` // in the matrix: "GPU0", "NIC0"
	UUID string `json:"uuid"` // as it is leased
	NIC  string `json:"nic,omitempty"`
	PCI  string `json:"pci,omitempty"`
	CPUs string `json:"cpus,omitempty"` // near it, in list format
	NUMA int    `json:"numa"`           // -1 if unknown
}

const unknownPath = "N/A"

func topologyOf(inv gpu.Inventory) topology {
	t := topology{Hostname: inv.Hostname, Devices: []topologyDevice{}, Matrix: [][]string{}}
	for i, g := range inv.GPUs {
		t.Devices = append(t.Devices, topologyDevice{Name: "GPU" + strconv.Itoa(g.Index), UUID: g.UUID, PCI: g.PCI, CPUs: g.CPUs, NUMA: g.NUMA})
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
		t.Devices = append(t.Devices, topologyDevice{Name: "NIC" + strconv.Itoa(i), UUID: n.Device(true).UUID, NIC: n.Name, PCI: n.PCI, NUMA: n.NUMA})
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

// pathBetween returns the cell for two GPUs.
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

// usualWidth is the width for which a matrix is laid out without a terminal.
const usualWidth = 80

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

// print writes the matrix in full if full is set or it fits the width, and otherwise with short words.
func (t topology) print(w io.Writer, full bool, width int) error {
	if len(t.Devices) == 0 {
		_, err := fmt.Fprintln(w, noGPUs)
		return err
	}
	var text bytes.Buffer
	if err := t.printFull(&text); err != nil {
		return err
	}
	matrix, _, _ := strings.Cut(text.String(), legend)
	for line := range strings.Lines(matrix) {
		if !full && utf8.RuneCountInString(line)-1 > width {
			return t.printShort(w, width)
		}
	}
	_, err := w.Write(text.Bytes())
	return err
}

func (t topology) printFull(w io.Writer) error {
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
			row = append(row, "", "")
			fmt.Fprintf(&nics, "  %s: %s\n", d.Name, d.NIC)
		}
		rows = append(rows, row)
	}
	if err := output.PrintTable(w, rows); err != nil {
		return err
	}
	text := legend
	if nics.Len() > 0 {
		text += "\nNIC Legend:\n\n" + nics.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

// shortLegend explains the words of the short form.
const shortLegend = `
X    the device itself
SYS  from one NUMA node to another
NOD  within a NUMA node, from one PCIe host bridge to another (NODE)
PHB  through a PCIe host bridge, which is mostly the CPU
PXB  through several PCIe bridges, and no host bridge
PIX  through one PCIe bridge at most
#    over # NVLinks; behind an NVSwitch, over those that each has to the switch

--no-trunc shows the whole matrix, with the paths between NICs.
`

// shortCell is the width of a column of the short form, with one blank.
const shortCell = 4

// printShort writes the rows of GPUs in columns of three letters: all columns side by side if they fit, and otherwise
// the columns of GPUs and then those of NICs, in parts that fit the width. The NUMA nodes follow.
func (t topology) printShort(w io.Writer, width int) error {
	var text strings.Builder
	perPart := max(1, width/shortCell-1)
	parts := [][]int{nil, nil} // columns of GPUs and of NICs
	for i, d := range t.Devices {
		kind := 0
		if d.NIC != "" {
			kind = 1
		}
		parts[kind] = append(parts[kind], i)
	}
	rows := cmp.Or(len(parts[0]), len(t.Devices)) // rows of GPUs, or of NICs if there are no GPUs
	if len(t.Devices) <= perPart {
		parts = [][]int{slices.Concat(parts...)}
	}
	for _, columns := range parts {
		for part := range slices.Chunk(columns, perPart) {
			t.writePart(&text, rows, part)
		}
	}
	t.writeNUMANodes(&text, width)
	var nics []string
	for _, d := range t.Devices {
		if d.NIC != "" {
			nics = append(nics, shortName(d)+"="+d.NIC)
		}
	}
	if nics != nil {
		text.WriteString("\n" + strings.Join(output.BreakWords("NICs: "+strings.Join(nics, " "), width), "\n") + "\n")
	}
	_, err := io.WriteString(w, text.String()+shortLegend)
	return err
}

// writePart writes some columns of the first rows of the matrix.
func (t topology) writePart(text *strings.Builder, rows int, columns []int) {
	if text.Len() > 0 {
		text.WriteString("\n")
	}
	line := fmt.Sprintf("%-*s", shortCell, "")
	for _, i := range columns {
		line += fmt.Sprintf("%-*s", shortCell, shortName(t.Devices[i]))
	}
	text.WriteString(strings.TrimRight(line, " ") + "\n")
	for k := range rows {
		line = fmt.Sprintf("%-*s", shortCell, shortName(t.Devices[k]))
		for _, i := range columns {
			line += fmt.Sprintf("%-*s", shortCell, shortPath(t.Matrix[k][i]))
		}
		text.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

// writeNUMANodes writes the CPUs and devices of each NUMA node.
func (t topology) writeNUMANodes(text *strings.Builder, width int) {
	near, order := map[string][]string{}, []string{}
	cpus := map[string]string{}
	for _, d := range t.Devices {
		node := formatNUMA(d.NUMA)
		if near[node] == nil {
			order = append(order, node)
		}
		near[node] = append(near[node], shortName(d))
		cpus[node] = cmp.Or(cpus[node], d.CPUs)
	}
	text.WriteString("\n")
	for _, node := range order {
		line := fmt.Sprintf("NUMA node %s, CPUs %s: %s", node, cmp.Or(cpus[node], unknownPath), strings.Join(near[node], " "))
		text.WriteString(strings.Join(output.BreakWords(line, width), "\n") + "\n")
	}
}

// shortName returns "G0" for GPU0 and "N0" for NIC0.
func shortName(d topologyDevice) string {
	return strings.NewReplacer("GPU", "G", "NIC", "N").Replace(d.Name)
}

// shortPath returns a path in at most three letters; for NVLinks only their number.
func shortPath(path string) string {
	if path == string(gpu.PathNODE) {
		return "NOD"
	}
	return strings.TrimPrefix(path, "NV")
}

func formatNUMA(node int) string {
	if node < 0 {
		return unknownPath
	}
	return strconv.Itoa(node)
}
