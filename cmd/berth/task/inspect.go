package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// InspectCommand is berth inspect.
func InspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show details of tasks and leases, and the reason of each edit",
		ArgsUsage: "TASK|LEASE|CONTAINER…",
		Description: "Prints for a task: its options, its container's spec, its state, its lease, and each device, file, variable\n" +
			"and rule that it has because of the lease, with the device, driver capability or feature that caused it. A\n" +
			"container of docker, containerd or podman is named by its id or name, or by its lease.\n\n" +
			"A TEMPLATE of --format has the fields of the JSON, such as {{.task.name}}, and for a task also docker's, such\n" +
			"as {{.Id}}, {{.State.Pid}}, {{.Config.Env}} or {{.HostConfig.NetworkMode}}.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "why", Usage: "print a table of the additions and removals with their reasons instead of JSON"},
			inspectFormatFlag(),
		},
		BashComplete: backend.CompleteTasks(backend.AnyTask),
		OnUsageError: verb.WrongUsage,
		Action:       runInspect,
	}
}

func runInspect(c *cli.Context) error {
	if c.NArg() == 0 {
		return verb.WrongCommandLine(c, "inspect takes tasks, leases or containers, by id or name")
	}
	store, conf, err := backend.OpenTasks(c)
	if err != nil {
		return err
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	i := inspector{store: store, node: node, view: backend.View(node)}
	found := []inspected{}
	failed := false
	for _, word := range c.Args().Slice() {
		seen, err := i.find(c.Context, word)
		if err != nil {
			verb.ReportError(err)
			failed = true
			continue
		}
		found = append(found, seen)
	}
	switch {
	case c.String("format") != "":
		err = i.printFormatted(os.Stdout, c.String("format"), found)
	case c.Bool("why"):
		err = printWhy(output.NewStyledWriter(os.Stdout), found)
	default:
		err = output.PrintJSON(os.Stdout, found)
	}
	if err == nil && failed {
		return verb.WithCode(verb.ExitFailure, nil)
	}
	return err
}

// inspected is one element in the output of berth inspect.
type inspected struct {
	Task  *inspectedTask `json:"task,omitempty"`
	Lease *ledger.Status `json:"lease,omitempty"`
	// Injected is what the container has because of the lease.
	Injected []berth.Injection `json:"injected,omitempty"`
	// Removed lists what berth has removed from the container's spec, and remarks.
	Removed []berth.Removal `json:"removed,omitempty"`
	// NotExplained is the reason if Injected is unknown.
	NotExplained string `json:"not_explained,omitempty"`
}

func (i inspected) name() string {
	if i.Task != nil {
		return i.Task.Name
	}
	return cmp.Or(i.Lease.Owner.Name, i.Lease.Owner.Container, i.Lease.ID)
}

// inspectedTask is a task's record with its state, paths and container.
type inspectedTask struct {
	tasks.Record
	// Durations are the record's durations as text.
	Durations inspectedDurations `json:"durations"`
	State     inspectedState     `json:"state"`
	Paths     inspectedPaths     `json:"paths"`
	// Container is null if the container's bundle is gone.
	Container *inspectedContainer `json:"container"`
}

// inspectedDurations has the same names as the record, whose durations are in nanoseconds.
type inspectedDurations struct {
	Grace   string `json:"grace"`
	Timeout string `json:"timeout"` // "none" without a limit
}

func durationsOf(r tasks.Record) inspectedDurations {
	d := inspectedDurations{Grace: "for ever", Timeout: "none"}
	if terms := supervise.TermsOf(r, 0); terms.GracePeriod() >= 0 {
		d.Grace = terms.GracePeriod().Round(time.Millisecond).String()
	}
	if r.Timeout > 0 {
		d.Timeout = time.Duration(r.Timeout).String()
	}
	return d
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
	Ends       *time.Time `json:"ends,omitempty"` // when the timeout ends it
	Restarts   int        `json:"restarts"`
	MonitorPID int        `json:"monitor_pid,omitempty"`
}

type inspectedPaths struct {
	Directory string `json:"directory"`
	Bundle    string `json:"bundle"`
	Log       string `json:"log,omitempty"`
}

// inspector finds and describes the objects that the arguments name.
type inspector struct {
	store backend.Tasks
	node  *berth.Node
	view  ledger.View
}

// find looks for a task, then for a lease as [backend.FindLease] does.
func (i inspector) find(ctx context.Context, word string) (inspected, error) {
	t, err := i.store.Find(word)
	if err == nil {
		return i.describeTask(ctx, t), nil
	}
	if !isNotFound(err) && !errors.Is(err, backend.ErrElsewhere) {
		return inspected{}, err
	}
	l, absent := backend.FindLease(ctx, i.view, word)
	switch {
	case errors.Is(absent, ledger.ErrNotFound) && errors.Is(err, backend.ErrElsewhere):
		return inspected{}, err
	case errors.Is(absent, ledger.ErrNotFound):
		// Not wrapped: the text has its advice, and ExitStatus must not add another.
		return inspected{}, fmt.Errorf("%v, nor a lease or a container with one; berth ps -a and berth leases list them, and berth images --json describes images", err) //nolint:errorlint // see above
	case absent != nil:
		return inspected{}, fmt.Errorf("inspect %q: %w", word, absent)
	}
	seen := inspected{Lease: &l}
	switch {
	case l.Owner.EntryPoint == "alloc":
		seen.NotExplained = "the lease belongs to a program outside of containers: nothing was injected"
	case l.Owner.Bundle == "":
		seen.NotExplained = "the container's bundle isn't known"
	default:
		seen.explain(ctx, i.node, l.Lease, l.Owner.Bundle, nil)
		seen.Removed = i.removedFrom(l.ID)
	}
	return seen, nil
}

// removedFrom returns the removals that the event log has of a lease, none if the log can't be
// read.
func (i inspector) removedFrom(lease string) []berth.Removal {
	removed, err := i.node.LoggedRemovals("prepared", lease)
	if err != nil {
		return nil
	}
	return removed
}

func (i inspector) describeTask(ctx context.Context, t tasks.Task) inspected {
	seen := inspected{Task: &inspectedTask{
		Record: t.Record, Durations: durationsOf(t.Record), State: stateOfTask(t),
		Paths: inspectedPaths{Directory: i.store.Dir(t.ID), Bundle: i.findBundle(t)},
	}}
	if spec, err := readSpec(filepath.Join(seen.Task.Paths.Bundle, "config.json")); err == nil {
		seen.Task.Container = newInspectedContainer(spec)
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
	if i.store.Engine != nil {
		seen.Removed = i.removedFrom(lease.ID)
	}
	var root *os.File
	if t.State == tasks.Running && t.Life != nil {
		// If the task ends meanwhile, Explain leaves out the files in the root.
		root, _ = berth.OpenRoot(filepath.Join("/proc", strconv.Itoa(t.Life.Init.PID), "root"))
	}
	seen.explain(ctx, i.node, lease, seen.Task.Paths.Bundle, root)
	if root != nil {
		_ = root.Close() // an O_PATH descriptor
	}
	return seen
}

// findBundle returns the bundle of a task's container, "" if it is unknown.
func (i inspector) findBundle(t tasks.Task) string {
	if i.store.Engine == nil {
		return i.store.Path(t.ID, "bundle")
	}
	for _, l := range i.view.Leases {
		if l.Owner.Container == t.ID {
			return l.Owner.Bundle
		}
	}
	if dir := filepath.Join("/run/containerd/io.containerd.runtime.v2.task/berth", t.ID); fileExists(dir) {
		return dir // containerd's default
	}
	return ""
}

// devicesOf returns the task's part of the devices of a lease, which several tasks can share.
// held is nil if the lease is gone.
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
	s := inspectedState{Status: string(t.State), Running: t.State == tasks.Running, Error: t.Why, Ends: output.TimeOrNil(t.Deadline())}
	if t.Life != nil {
		s.Restarts = t.Life.Restarts
		s.MonitorPID = t.Life.Monitor.PID
		s.Started = output.TimeOrNil(t.Life.Started)
		if s.Running {
			s.PID = t.Life.Init.PID
		}
	}
	if t.Exit != nil {
		s.Code, s.OOM, s.Restarts, s.Unknown = &t.Exit.Code, t.Exit.OOM, t.Exit.Restarts, t.Exit.Unknown
		s.Started, s.Finished, s.MonitorPID = output.TimeOrNil(t.Exit.Started), output.TimeOrNil(t.Exit.Finished), 0
	}
	return s
}

// explain sets what the container of a bundle has because of the lease.
func (i *inspected) explain(ctx context.Context, node *berth.Node, lease ledger.Lease, bundle string, root *os.File) {
	spec, err := readSpec(filepath.Join(bundle, "config.json"))
	if err == nil {
		i.Injected, err = node.Explain(ctx, spec, lease, root)
	}
	if err != nil {
		i.NotExplained = printable.Line(err.Error())
	}
}

func isNotFound(err error) bool { return errors.Is(err, tasks.ErrNotFound) }

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
