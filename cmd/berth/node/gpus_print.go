package node

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/printable"
)

// noGPUs is printed instead of a table if the driver has no GPU.
const noGPUs = "the driver has no GPU; berth doctor looks for the reason"

// print writes the table: in full, or in a form that fits 80 columns unless names are long. Holders are broken into
// lines that fit width columns; 0 means no terminal.
func (n node) print(w io.Writer, now time.Time, full bool, width int) error {
	head := append([]string{n.Hostname}, n.countModels()...)
	head = append(head, "driver "+n.Driver.Version)
	if n.Driver.CUDA != "" {
		head = append(head, "CUDA "+n.Driver.CUDA)
	}
	if n.NVSwitches > 0 {
		head = append(head, output.FormatCount(n.NVSwitches, "NVSwitch"))
	}
	if len(n.NICs) > 0 {
		head = append(head, output.FormatCount(len(n.NICs), "HCA"))
	}
	for _, line := range output.WrapWords(strings.Join(head, ", "), width) {
		if _, err := fmt.Fprintln(w, printable.Escape(line)); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if len(n.Devices) == 0 {
		_, err := fmt.Fprintln(w, noGPUs)
		return err
	}
	if full {
		return output.PrintTable(w, append([][]string{output.Headings(deviceColumns())}, n.tableRows(now)...))
	}
	return output.PrintTable(w, output.WrapColumn(n.shortRows(now), holderColumn, width))
}

// countModels returns the models with their numbers of GPUs.
func (n node) countModels() (all []string) {
	count := map[string]int{}
	for _, d := range n.Devices {
		if d.Parent != "" || d.Model == "" {
			continue
		}
		if count[d.Model]++; count[d.Model] == 1 {
			all = append(all, d.Model)
		}
	}
	for i, model := range all {
		all[i] = fmt.Sprintf("%d × %s", count[model], model)
	}
	return all
}

// holderColumn is the index of HOLDER among the short rows.
const holderColumn = 5

// shortRows returns the heading and the rows of the table that fits 80 columns.
func (n node) shortRows(now time.Time) [][]string {
	rows := [][]string{{"GPU", "MODEL", "MEMORY", "UTIL", "STATE", "HOLDER", "USER", "FOR", "UUID"}}
	var uuids []string
	for _, d := range n.Devices {
		uuids = append(uuids, d.UUID)
	}
	short := gpu.ShortenUUIDs(uuids)
	for i, d := range n.Devices {
		model := gpu.ModelWord(d.Model)
		if d.Parent != "" {
			model = d.Profile
		}
		holder, age := d.formatHolder(now)
		rows = append(rows, []string{d.Index, output.OrDash(model), d.formatMemoryUse(), d.formatBusy(), d.State, holder, output.OrDash(d.User), age, short[i]})
	}
	return rows
}

// formatMemoryUse prints used and total memory: "12/80 GiB".
func (d device) formatMemoryUse() string {
	if d.Memory == 0 {
		return "-"
	}
	return d.formatUsed("") + "/" + output.FormatMemory(d.Memory)
}

// formatUsed prints the used memory in GiB, "-" if it isn't known.
func (d device) formatUsed(unit string) string {
	switch {
	case d.MemoryUsed == nil:
		return "-"
	case *d.MemoryUsed == 0:
		return "0" + unit
	}
	return strings.TrimSuffix(output.FormatMemory(*d.MemoryUsed), " GiB") + unit
}

func (d device) formatBusy() string {
	if d.Busy == nil {
		return "-"
	}
	return fmt.Sprintf("%d%%", *d.Busy)
}

// formatHolder returns the holder of the device and the age of its lease, or why the device can't be leased.
func (d device) formatHolder(now time.Time) (holder, age string) {
	switch {
	case d.Lease != nil:
		return output.FormatHolder(d.Lease.Owner), output.FormatAge(d.Lease.Since, now)
	case d.Lost != "":
		return "(" + d.Lost + ")", "-"
	case d.State == "in use":
		return gpu.ListProcesses(d.Processes), "-"
	case d.State == "sliced" && d.slices == 0:
		return "(MIG mode, no slices)", "-"
	}
	return "-", "-"
}

// deviceColumns returns the columns of the full table.
func deviceColumns() []output.Column {
	return output.NewColumns("GPU", "Model", "Memory", "Used", "Util", "NUMA", "NIC", "State", "Holder", "User", "For", "UUID")
}

func (n node) tableRows(now time.Time) (rows [][]string) {
	for _, d := range n.Devices {
		rows = append(rows, d.tableRow(now))
	}
	return rows
}

func (d device) tableRow(now time.Time) []string {
	model, numa, nics := d.Model, "-", strings.Join(d.nics, ",")
	if d.Parent != "" {
		model = "  " + d.Profile
	}
	if d.NUMA >= 0 {
		numa = fmt.Sprint(d.NUMA)
	}
	holder, age := d.formatHolder(now)
	return []string{
		d.Index, output.OrDash(model), output.FormatMemory(d.Memory), d.formatUsed(" GiB"), d.formatBusy(), numa, output.OrDash(nics), d.State, holder, output.OrDash(d.User), age, d.UUID,
	}
}
