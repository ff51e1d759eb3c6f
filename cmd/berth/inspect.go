package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show details of tasks and leases, and why each edit was made",
		ArgsUsage: "TASK|LEASE|CONTAINER…",
		Description: "Of a task: what was asked for, what its container was made with, how it does, its lease, and each device,\n" +
			"file, variable and rule that it has because of the lease, with the device, driver capability or feature that\n" +
			"asked for it. A container of docker, containerd or podman is named by its id or name, or by its lease.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "why", Usage: "print a table of what was injected or taken out, and why, instead of JSON"},
		},
		BashComplete: completeTasks(anyTask),
		OnUsageError: wrongUsage,
		Action:       runInspect,
	}
}

func runInspect(c *cli.Context) error {
	if c.NArg() == 0 {
		return wrongCommandLine(c, "inspect takes tasks, leases or containers, by id or name")
	}
	store, conf, err := openTasks(c)
	if err != nil {
		return err
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	i := inspector{store: store, node: node, view: viewOf(node)}
	found := []inspected{}
	failed := false
	for _, word := range c.Args().Slice() {
		seen, err := i.find(c.Context, word)
		if err != nil {
			_, line := exitStatus(err)
			printError(line)
			failed = true
			continue
		}
		found = append(found, seen)
	}
	if c.Bool("why") {
		err = newStyledWriter(os.Stdout).printWhy(found)
	} else {
		err = printJSON(os.Stdout, found)
	}
	if err == nil && failed {
		return exitError{exitFailure, nil}
	}
	return err
}

// viewOf is who holds what; nothing where the ledger can't be read.
func viewOf(node *berth.Node) ledger.View {
	view, err := node.View()
	if err != nil {
		return ledger.View{}
	}
	return view
}

// inspected is one element of what berth inspect prints.
type inspected struct {
	Task  *inspectedTask `json:"task,omitempty"`
	Lease *ledger.Status `json:"lease,omitempty"`
	// Injected is what the container has because of the lease.
	Injected []berth.Injection `json:"injected,omitempty"`
	// Removed is what it doesn't have because of berth, and what else is remarkable.
	Removed []berth.Removal `json:"removed,omitempty"`
	// NotExplained says why Injected isn't known.
	NotExplained string `json:"not_explained,omitempty"`
}

func (i inspected) name() string {
	if i.Task != nil {
		return i.Task.Name
	}
	return cmp.Or(i.Lease.Owner.Name, i.Lease.Owner.Container, i.Lease.ID)
}

// inspectedTask is a task's record with what follows from it.
type inspectedTask struct {
	tasks.Record
	State inspectedState `json:"state"`
	Paths inspectedPaths `json:"paths"`
	// Container is null if its bundle is gone.
	Container *inspectedContainer `json:"container"`
}

type inspectedState struct {
	Status     string     `json:"status"`
	Running    bool       `json:"running"`
	PID        int        `json:"pid"`
	Code       *int       `json:"exit_code"`                   // null before the end
	Unknown    bool       `json:"exit_code_unknown,omitempty"` // 255 stands for it
	OOM        bool       `json:"oom_killed"`
	Error      string     `json:"error,omitempty"`
	Started    *time.Time `json:"started"`
	Finished   *time.Time `json:"finished"`
	Restarts   int        `json:"restarts"`
	MonitorPID int        `json:"monitor_pid,omitempty"`
}

type inspectedPaths struct {
	Directory string `json:"directory"`
	Bundle    string `json:"bundle"`
	Log       string `json:"log,omitempty"`
}

// inspector finds what people mean, and explains it.
type inspector struct {
	store keeper
	node  *berth.Node
	view  ledger.View
}

// find looks for a task, then for a lease, by its own id or that of its container.
func (i inspector) find(ctx context.Context, word string) (inspected, error) {
	t, err := i.store.Find(word)
	if err == nil {
		return i.describeTask(ctx, t), nil
	}
	if !isNotFound(err) && !errors.Is(err, errElsewhere) {
		return inspected{}, err
	}
	l, found := i.findLease(word)
	if errors.Is(err, errElsewhere) && !found {
		return inspected{}, err
	}
	if !found {
		// Not wrapped: this is the way out, and no other is to be added.
		return inspected{}, fmt.Errorf("%v, nor a lease or a container with one; berth ps -a and berth leases list them", err) //nolint:errorlint // see above
	}
	seen := inspected{Lease: &l}
	switch {
	case l.Owner.Door == "alloc":
		seen.NotExplained = "the lease is that of a program outside of containers: nothing was injected"
	case l.Owner.Bundle == "":
		seen.NotExplained = "it isn't known where the container's bundle is"
	default:
		seen.explain(ctx, i.node, l.Lease, l.Owner.Bundle, nil)
		seen.Removed = i.removedFrom(l.ID)
	}
	return seen, nil
}

// removedFrom is what the event log still has of a lease; what can't be read is no fault of
// what is inspected.
func (i inspector) removedFrom(lease string) []berth.Removal {
	removed, err := i.node.Told("prepared", lease)
	if err != nil {
		return nil
	}
	return removed
}

// findLease is the one that a word means alone.
func (i inspector) findLease(word string) (ledger.Status, bool) {
	var found []ledger.Status
	for _, l := range i.view.Leases {
		if l.ID == word || l.Owner.Name == word {
			return l, true
		}
		if word != "" && (strings.HasPrefix(l.ID, word) || strings.HasPrefix(l.Owner.Container, word)) {
			found = append(found, l)
		}
	}
	if len(found) != 1 {
		return ledger.Status{}, false
	}
	return found[0], true
}

func (i inspector) describeTask(ctx context.Context, t tasks.Task) inspected {
	seen := inspected{Task: &inspectedTask{
		Record: t.Record, State: stateOfTask(t),
		Paths: inspectedPaths{Directory: i.store.Dir(t.ID), Bundle: i.bundleOf(t)},
	}}
	if spec, err := readSpec(filepath.Join(seen.Task.Paths.Bundle, "config.json")); err == nil {
		seen.Task.Container = containerOf(spec)
	}
	if log := i.store.Path(t.ID, "log"); fileExists(log) {
		seen.Task.Paths.Log = log
	}
	if t.Lease == "" {
		return seen
	}
	lease := ledger.Lease{ID: t.Lease, Request: t.Request}
	for _, l := range i.view.Leases {
		if l.ID == t.Lease {
			seen.Lease, lease = &l, l.Lease
		}
	}
	if t.Gang != nil {
		seen.NotExplained = "a gang's devices are in its ranks: berth inspect --why " + t.Name + "." + t.Gang.Names[0]
		return seen
	}
	lease.Devices = devicesOf(t, lease.Devices)
	if seen.Removed = t.Removed; seen.Removed == nil {
		seen.Removed = berth.ReadNotes(t.Notes)
	}
	if i.store.other != nil {
		seen.Removed = i.removedFrom(lease.ID)
	}
	var root *os.File
	if t.State == tasks.Running && t.Life != nil {
		// One that ends meanwhile isn't looked into.
		root, _ = berth.OpenRoot(filepath.Join("/proc", strconv.Itoa(t.Life.Init.PID), "root"))
	}
	seen.explain(ctx, i.node, lease, seen.Task.Paths.Bundle, root)
	if root != nil {
		_ = root.Close() // an O_PATH descriptor
	}
	return seen
}

// bundleOf is where a task's container is described.
func (i inspector) bundleOf(t tasks.Task) string {
	if i.store.other == nil {
		return i.store.Path(t.ID, "bundle")
	}
	for _, l := range i.view.Leases {
		if l.Owner.Container == t.ID {
			return l.Owner.Bundle
		}
	}
	if dir := filepath.Join("/run/containerd/io.containerd.runtime.v2.task/berth", t.ID); fileExists(dir) {
		return dir // where containerd usually has it
	}
	return ""
}

// devicesOf are the task's own of a lease, which may be that of others too, or gone.
func devicesOf(t tasks.Task, held []gpu.Device) (devices []gpu.Device) {
	own := t.Devices
	if t.Member != nil {
		own = t.Member.Sees
	}
	for _, uuid := range own {
		i := slices.IndexFunc(held, func(d gpu.Device) bool { return d.UUID == uuid })
		if i >= 0 {
			devices = append(devices, held[i])
		} else {
			devices = append(devices, gpu.Device{UUID: uuid})
		}
	}
	if len(own) == 0 {
		return held
	}
	return devices
}

func stateOfTask(t tasks.Task) inspectedState {
	s := inspectedState{Status: string(t.State), Running: t.State == tasks.Running, Error: t.Why}
	if t.Life != nil {
		s.Restarts = t.Life.Restarts
		s.MonitorPID = t.Life.Monitor.PID
		s.Started = timeOrNil(t.Life.Started)
		if s.Running {
			s.PID = t.Life.Init.PID
		}
	}
	if t.Exit != nil {
		s.Code, s.OOM, s.Restarts, s.Unknown = &t.Exit.Code, t.Exit.OOM, t.Exit.Restarts, t.Exit.Unknown
		s.Started, s.Finished, s.MonitorPID = timeOrNil(t.Exit.Started), timeOrNil(t.Exit.Finished), 0
	}
	return s
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// maxSpec is more than any engine writes.
const maxSpec = 16 << 20

// explain says what the container of a bundle has because of the lease.
func (i *inspected) explain(ctx context.Context, node *berth.Node, lease ledger.Lease, bundle string, root *os.File) {
	spec, err := readSpec(filepath.Join(bundle, "config.json"))
	if err == nil {
		i.Injected, err = node.Explain(ctx, spec, lease, root)
	}
	if err != nil {
		i.NotExplained = printable.Line(err.Error())
	}
}

func readSpec(path string) (*specs.Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxSpec+1))
	if err == nil && len(data) > maxSpec {
		err = errors.New("it is too large")
	}
	var spec specs.Spec
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &spec, nil
}

func (w styledWriter) printWhy(found []inspected) error {
	if len(found) == 0 {
		return nil
	}
	rows := [][]string{{"CONTAINER", "KIND", "WHAT", "WHY"}}
	for _, i := range found {
		if i.Injected == nil {
			why := cmp.Or(i.NotExplained, "it has no lease")
			rows = append(rows, []string{i.name(), "-", "nothing", why})
		}
		for _, x := range i.Injected {
			rows = append(rows, []string{i.name(), x.Kind, makePrintable(x.Name), makePrintable(x.Why)})
		}
		for _, x := range i.Removed {
			kind := "no " + x.Kind
			if x.Kind == "note" {
				kind = x.Kind
			}
			rows = append(rows, []string{i.name(), kind, makePrintable(x.Name), makePrintable(x.Why)})
		}
	}
	if w.width == 0 {
		return printTable(w, rows)
	}
	return w.printWhyNarrow(rows[1:])
}

// printWhyNarrow prints the rows of printWhy for a terminal: the reasons are below what they are
// of, and the names of containers above.
func (w styledWriter) printWhyNarrow(rows [][]string) (err error) {
	printIndented := func(indent int, first, text string) {
		for _, line := range wrapWords(text, w.width-indent) {
			_, more := fmt.Fprintf(w, "%-*s%s\n", indent, first, line)
			err, first = errors.Join(err, more), ""
		}
	}
	name := ""
	for _, row := range rows {
		if row[0] != name {
			name = row[0]
			printIndented(0, "", w.style(bold, name))
		}
		printIndented(17, "  "+row[1]+" ", row[2])
		printIndented(19, "", row[3])
	}
	return err
}

func isNotFound(err error) bool { return errors.Is(err, tasks.ErrNotFound) }

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// inspectedContainer is what a task's container was described with: the image's wishes,
// the command line's, and berth's.
type inspectedContainer struct {
	Args         []string            `json:"args"`
	Env          []string            `json:"env"`
	Dir          string              `json:"workdir"`
	User         string              `json:"user"` // numbers
	Groups       []uint32            `json:"groups,omitempty"`
	Hostname     string              `json:"hostname,omitempty"`
	ReadOnly     bool                `json:"read_only"`
	Mounts       []specs.Mount       `json:"mounts"`
	Capabilities []string            `json:"capabilities"`
	Ulimits      []specs.POSIXRlimit `json:"ulimits,omitempty"`
	Resources    *inspectedResources `json:"resources,omitempty"`
}

// inspectedResources are limits of the container's cgroup. Device rules are left out:
// what was injected says what opens.
type inspectedResources struct {
	Memory *specs.LinuxMemory `json:"memory,omitempty"`
	CPU    *specs.LinuxCPU    `json:"cpu,omitempty"`
	PIDs   *specs.LinuxPids   `json:"pids,omitempty"`
}

// containerOf reads a spec that berth has written, or had written.
func containerOf(s *specs.Spec) *inspectedContainer {
	if s.Process == nil {
		return nil
	}
	p := s.Process
	c := &inspectedContainer{
		Args: p.Args, Env: p.Env, Dir: p.Cwd, User: fmt.Sprintf("%d:%d", p.User.UID, p.User.GID), Groups: p.User.AdditionalGids,
		Hostname: s.Hostname, ReadOnly: s.Root != nil && s.Root.Readonly, Mounts: s.Mounts, Ulimits: p.Rlimits,
	}
	if p.Capabilities != nil {
		c.Capabilities = p.Capabilities.Bounding
	}
	if s.Linux != nil && s.Linux.Resources != nil {
		r := s.Linux.Resources
		c.Resources = &inspectedResources{Memory: r.Memory, CPU: r.CPU, PIDs: r.Pids}
	}
	return c
}
