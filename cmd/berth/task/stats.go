package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// StatsCommand is berth stats.
func StatsCommand() *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Usage:     "show the resource usage of running tasks",
		ArgsUsage: "[TASK…]",
		Description: "CPU % is in percent of one CPU, measured over a second; MEMORY is without the page cache that the kernel\n" +
			"can drop at once. Values that no controller of the cgroup counts are -.\n" +
			"GPU % is the mean and GPU MEMORY the sum over the leased devices.\n" +
			"On a terminal that is too narrow for the table, MEM %, ID and BLOCK I/O are left out.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON, an array in each line"},
			output.FormatFlag("Name", "CPUPerc"),
			&cli.BoolFlag{Name: "no-stream", Usage: "measure once"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "show the whole table, however wide"},
		},
		BashComplete: backend.CompleteTasks(backend.IsRunning),
		OnUsageError: verb.WrongUsage,
		Action:       runStats,
	}
}

// statsEvery is the duration of a measurement.
const statsEvery = time.Second

func runStats(c *cli.Context) error {
	store, conf, err := backend.OpenTasks(c)
	if err != nil {
		return err
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	s := sampler{
		store: store, words: c.Args().Slice(), held: func() map[string][]gpu.Device { return readHeldDevices(c.Context, conf) },
		gauge: &probe.Gauge{Child: backend.NVMLChild(c, node, "meter", 0)},
	}
	defer s.gauge.Close()
	if _, err := s.listTasks(); err != nil {
		return err
	}
	if all, err := store.ListUnended(); err == nil && len(s.words) == 0 {
		warnOfBrokenTasks(store, all)
	}
	shown := func(w io.Writer, all []usage) error {
		width := output.NewStyledWriter(os.Stdout).Width
		if c.Bool("no-trunc") {
			width = 0
		}
		return printStats(w, all, width)
	}
	switch {
	case output.HasFormat(c):
		shown = func(w io.Writer, all []usage) error { return printStatsFormatted(w, c.String("format"), all) }
	case c.Bool("json"):
		shown = func(w io.Writer, all []usage) error { return json.NewEncoder(w).Encode(all) }
	}
	if !c.Bool("json") && !c.Bool("no-stream") && term.IsTerminal(int(os.Stdout.Fd())) {
		table := shown
		shown = func(w io.Writer, all []usage) error {
			if _, err := io.WriteString(w, output.ClearScreen); err != nil {
				return err
			}
			return table(w, all)
		}
	}
	for {
		all, err := s.measureAll(c.Context)
		if err != nil {
			return output.EndWatch(c.Context, err)
		}
		if err := shown(os.Stdout, all); err != nil || c.Bool("no-stream") {
			return err
		}
		if len(all) == 0 && len(s.words) > 0 {
			return nil // all named tasks have ended
		}
	}
}

// readHeldDevices returns the devices of all leases by the lease's id.
func readHeldDevices(ctx context.Context, conf berth.Config) map[string][]gpu.Device {
	all := map[string][]gpu.Device{}
	for id, l := range readHeldLeases(ctx, conf) {
		all[id] = l.Devices
	}
	return all
}

// usage is one task in the output of berth stats --json.
type usage struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// CPU in percent of one CPU.
	CPU          float64     `json:"cpu_percent"`
	Memory       uint64      `json:"memory,omitempty"` // left out without a memory controller, as PIDs without a pids controller
	MemoryLimit  uint64      `json:"memory_limit"`
	PIDs         uint64      `json:"pids,omitempty"`
	PIDLimit     uint64      `json:"pids_limit,omitempty"`
	BlockRead    uint64      `json:"block_read"`
	BlockWritten uint64      `json:"block_written"`
	Devices      []probe.Use `json:"devices,omitempty"`
}

// sampler measures tasks.
type sampler struct {
	store backend.Tasks
	words []string // the names of tasks; empty for all running ones
	held  func() map[string][]gpu.Device
	gauge *probe.Gauge
	// failed means that a call of NVML has failed, so that it isn't repeated.
	failed bool
}

// listTasks returns the running tasks to measure. A named task has to exist at the first call.
func (s *sampler) listTasks() (found []tasks.Task, err error) {
	if len(s.words) == 0 {
		all, err := s.store.ListUnended()
		return slices.DeleteFunc(all, func(t tasks.Task) bool { return t.State != tasks.Running || t.Gang != nil }), err
	}
	for _, word := range s.words {
		t, err := s.store.Find(word)
		if err == nil && t.State != tasks.Running {
			err = fmt.Errorf("task %s: %w: %s", t.Name, control.ErrNotRunning, t.Status)
		}
		if err != nil {
			return nil, err
		}
		if t.Gang == nil {
			found = append(found, t)
			continue
		}
		ranks, err := s.store.Ranks(*t.Gang)
		if err != nil {
			return nil, err
		}
		found = append(found, slices.DeleteFunc(ranks, func(t tasks.Task) bool { return t.State != tasks.Running })...)
	}
	return found, nil
}

// measureAll measures the running tasks at the beginning and at the end of statsEvery. Tasks
// that end meanwhile are left out.
func (s *sampler) measureAll(ctx context.Context) ([]usage, error) {
	list, err := s.listTasks()
	if err != nil && !errors.Is(err, control.ErrNotRunning) && !isNotFound(err) {
		return nil, err
	}
	before := make([]control.Sample, len(list))
	for i, t := range list {
		before[i], _ = control.Measure(t) // the second measurement reports errors
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(statsEvery):
	}
	held, all := s.held(), []usage{}
	for i, t := range list {
		after, err := control.Measure(t)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && before[i].At.IsZero():
			continue
		case err != nil:
			return nil, fmt.Errorf("task %s: %w", t.Name, err)
		}
		u := usage{
			ID: t.ID, Name: t.Name, CPU: after.CPUSince(before[i]), Memory: after.Memory, MemoryLimit: after.MemoryLimit,
			PIDs: after.PIDs, PIDLimit: after.PIDLimit, BlockRead: after.Read, BlockWritten: after.Written,
		}
		u.Devices = s.measureDevices(ctx, devicesOf(t, held[t.Lease]))
		all = append(all, u)
	}
	return all, nil
}

// measureDevices measures devices with NVML. An error is printed, and NVML isn't called again.
func (s *sampler) measureDevices(ctx context.Context, devices []gpu.Device) []probe.Use {
	var uuids []string
	for _, d := range devices {
		if !d.IsCDI() && !d.IsNIC() {
			uuids = append(uuids, d.UUID)
		}
	}
	if s.failed || len(uuids) == 0 {
		return nil
	}
	uses, err := s.gauge.Measure(ctx, uuids)
	if err != nil && ctx.Err() == nil {
		s.failed = true
		verb.PrintError(err.Error())
	}
	return uses
}

// printStats writes the table, narrowed to width columns; 0 means no terminal.
func printStats(w io.Writer, all []usage, width int) error {
	rows := [][]string{{"ID", "NAME", "CPU %", "MEMORY", "MEM %", "BLOCK I/O", "PIDS", "GPU %", "GPU MEMORY"}}
	for _, u := range all {
		busy, memory := u.formatGPUs()
		used, part, pids := u.formatCounts()
		rows = append(rows, []string{
			u.ID, u.Name, fmt.Sprintf("%.1f", u.CPU), used, part,
			formatBytes(u.BlockRead) + " / " + formatBytes(u.BlockWritten), pids, busy, memory,
		})
	}
	return output.PrintTable(w, output.FitTable(rows, width,
		output.Narrowing{Heading: "BLOCK I/O", Cut: joinSizes},
		output.Narrowing{Heading: "GPU MEMORY", Cut: joinSizes},
		output.Narrowing{Heading: "MEMORY", Cut: joinSizes},
		output.Narrowing{Heading: "MEM %", Drop: true},
		output.Narrowing{Heading: "ID", Drop: true},
		output.Narrowing{Heading: "BLOCK I/O", Drop: true},
		output.Narrowing{Heading: "NAME", Least: 12, Wrap: true},
	))
}

// printStatsFormatted prints tasks by a template of --format, with docker's fields and those of the devices.
func printStatsFormatted(w io.Writer, format string, all []usage) error {
	columns := []output.Column{
		{Name: "ID", Heading: "CONTAINER ID"},
		{Name: "Container", Heading: "CONTAINER"},
		{Name: "Name", Heading: "NAME"},
		{Name: "CPUPerc", Heading: "CPU %"},
		{Name: "MemUsage", Heading: "MEM USAGE / LIMIT"},
		{Name: "MemPerc", Heading: "MEM %"},
		{Name: "NetIO", Heading: "NET I/O"},
		{Name: "BlockIO", Heading: "BLOCK I/O"},
		{Name: "PIDs", Heading: "PIDS"},
		{Name: "GPUPerc", Heading: "GPU %"},
		{Name: "GPUMemUsage", Heading: "GPU MEM USAGE / LIMIT"},
	}
	percent := func(number string) string {
		if number == "-" {
			return number
		}
		return number + "%"
	}
	var rows [][]string
	for _, u := range all {
		busy, memory := u.formatGPUs()
		used, part, pids := u.formatCounts()
		rows = append(rows, []string{
			u.ID, u.ID, u.Name, percent(strconv.FormatFloat(u.CPU, 'f', 2, 64)), used, percent(part), "-",
			formatBytes(u.BlockRead) + " / " + formatBytes(u.BlockWritten), pids, percent(busy), memory,
		})
	}
	return output.PrintTableRows(w, format, columns, rows)
}

// joinSizes writes "3 GiB / 4 GiB" as "3/4 GiB": the unit is printed once if both have it.
func joinSizes(cell string, _ int) string {
	used, all, ok := strings.Cut(cell, " / ")
	if !ok {
		return cell
	}
	number, unit, _ := strings.Cut(used, " ")
	if _, other, _ := strings.Cut(all, " "); unit == other {
		used = number
	}
	return used + "/" + all
}

// formatCounts returns the cells of memory and processes. 0 means that no controller counts
// them, because a running task has some of both.
func (u usage) formatCounts() (memory, part, pids string) {
	memory, part, pids = "-", "-", "-"
	if u.Memory > 0 {
		memory = formatBytes(u.Memory) + " / " + formatBytes(u.MemoryLimit)
		part = fmt.Sprintf("%.1f", 100*float64(u.Memory)/float64(max(1, u.MemoryLimit)))
	}
	if u.PIDs > 0 {
		pids = strconv.FormatUint(u.PIDs, 10)
	}
	return memory, part, pids
}

// formatGPUs returns the mean utilisation and the sum of the memory of the devices.
func (u usage) formatGPUs() (busy, memory string) {
	var percent, told int
	var used, total uint64
	for _, d := range u.Devices {
		if d.Busy != nil {
			percent, told = percent+*d.Busy, told+1
		}
		used, total = used+d.Memory, total+d.Total
	}
	busy, memory = "-", "-"
	if told > 0 {
		busy = strconv.Itoa(percent / told)
	}
	if total > 0 {
		memory = formatBytes(used) + " / " + formatBytes(total)
	}
	return busy, memory
}

// formatBytes prints bytes in the largest binary unit that isn't larger than the value.
func formatBytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	value, i := float64(n), 0
	for value >= 1024 && i < len(units)-1 {
		value, i = value/1024, i+1
	}
	text := strconv.FormatFloat(value, 'f', 1, 64)
	if value >= 100 || i == 0 {
		text = strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strings.TrimSuffix(text, ".0") + " " + units[i]
}
