package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/launcher/control"
)

// nvmlTotalTimeout is how long NVML may take: without persistence mode the driver first
// initialises every GPU, which takes seconds; a call that hangs must not hang berth.
const nvmlTotalTimeout = 60 * time.Second

// DiscoverCommand is berth discover.
func DiscoverCommand() *cli.Command {
	return &cli.Command{
		Name:  "discover",
		Usage: "take the node's inventory, and prepare it for container starts",
		Description: "Writes the inventory snapshot and the directory of driver files, loads nvidia-uvm, and creates\n" +
			"missing device nodes. Run it at boot and after a driver or MIG change; a container start that needs a\n" +
			"fresh snapshot also runs it. It updates the CDI specs of berth cdi generate, and closes accelerators\n" +
			"to running containers of engines that hold no lease of them. It also removes tasks that ended longer\n" +
			"ago than run.keep_ended, and ends containers that were never started, unless --if-stale is given\n" +
			"without --processes, as by a container start, which waits for it.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "if-stale", Usage: "take no new snapshot if the last one still fits the machine"},
			&cli.BoolFlag{Name: "json", Usage: "print the inventory as JSON"},
			&cli.BoolFlag{Name: "processes", Usage: "with --if-stale, also record processes without a lease that use GPUs, and clean up as the timer does"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print nothing"},
		},
		OnUsageError: verb.WrongUsage,
		Action: verb.OnHost(func(c *cli.Context, conf berth.Config) error {
			if err := refreshCDI(c.Context, conf); err != nil {
				return err
			}
			node, err := berth.Open(conf)
			if err != nil {
				return err
			}
			discover, began := berth.Discover, time.Now()
			if c.Bool("if-stale") {
				discover = berth.Rediscover
			}
			seen, err := discover(c.Context, conf, backend.NVMLChild(c, node, "probe", nvmlTotalTimeout), conf.Log)
			// A container start runs --if-stale alone and waits for it, so that skips the cleanup.
			timer := c.Bool("if-stale") && c.Bool("processes")
			if timer || !c.Bool("if-stale") {
				pruneExpired(c.Context, conf)
				cleanUpLeases(c.Context, conf)
			}
			if timer && errors.Is(err, berth.ErrNoDriver) && !hasDriver(conf) {
				return nil // a server without GPUs: the cleanup of its containers and tasks is done
			}
			if err != nil {
				return err
			}
			if timer || !c.Bool("if-stale") {
				if err := recordProcesses(c, conf, seen.Inventory); err != nil { // the inventory is valid nevertheless
					conf.Log.Warn("the processes that use GPUs are unknown", "error", err)
				}
			}
			switch {
			case c.Bool("json"):
				return output.PrintJSON(os.Stdout, seen.Inventory)
			case c.Bool("quiet"):
				return nil
			}
			return printDiscovered(os.Stdout, seen, conf.SnapshotPath(), seen.Taken.Before(began))
		}),
	}
}

// hasDriver reports whether the driver's kernel module is loaded. It is true in doubt.
func hasDriver(conf berth.Config) bool {
	version, err := driver.Version(conf.GPUHost())
	return err != nil || version != ""
}

// recordProcesses stores the processes without a lease that use GPUs. It queries NVML only for GPUs that such a process
// has open: a query powers up a GPU without persistence mode, and the timer makes one each minute.
func recordProcesses(c *cli.Context, conf berth.Config, inv gpu.Inventory) error {
	if !conf.Policy.ChecksInUse() {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	if err := node.InspectDevices(c.Context); err != nil {
		return err
	}
	uuids := node.ListOpenDevices(inv)
	if len(uuids) == 0 {
		return node.SaveProcesses(c.Context, nil)
	}
	gauge := &probe.Gauge{Child: backend.NVMLChild(c, node, "meter", nvmlTotalTimeout)}
	defer gauge.Close()
	uses, err := gauge.Measure(c.Context, uuids)
	if err != nil {
		return err
	}
	found, err := node.IdentifyProcesses(uses)
	return errors.Join(err, node.SaveProcesses(c.Context, found))
}

// cleanUpLeases ends containers that hold devices and were never started, and releases the leases of
// dead holders.
func cleanUpLeases(ctx context.Context, conf berth.Config) {
	node, err := berth.Open(conf)
	if err != nil {
		return // every other command reports this error
	}
	ended, err := node.EvictUnstarted(ctx)
	if err != nil {
		conf.Log.Warn("end containers that were never started", "error", err)
	}
	for _, l := range ended {
		conf.Log.Warn("a container that was never started was ended", "container", l.Owner.Container, "lease", l.ID)
	}
	if err := node.Reap(ctx); err != nil {
		conf.Log.Warn("release the leases of dead holders", "error", err)
	}
}

// printDiscovered prints a summary of a snapshot. old means that the snapshot was taken
// before this program started.
func printDiscovered(w io.Writer, s snapshot.Snapshot, path string, old bool) error {
	inv := s.Inventory
	has := output.FormatCount(len(inv.GPUs), "GPU")
	if len(inv.NICs) > 0 {
		has += ", " + output.FormatCount(len(inv.NICs), "HCA")
	}
	done := "snapshot in " + path
	if old {
		done = path + " still fits the machine, nothing had to be done"
	}
	text := fmt.Sprintf("%s: driver %s, %s; %s\n", inv.Hostname, inv.Driver.Version, has, done)
	for _, g := range inv.GPUs {
		if g.Lost != "" {
			text += fmt.Sprintf("GPU %d (%s) is lost: %s\n", g.Index, g.PCI, g.Lost)
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

// refreshCDI updates the list of other vendors' devices. Defects of their specs are logged
// and are no error.
func refreshCDI(ctx context.Context, conf berth.Config) error {
	r, err := berth.RefreshCDI(ctx, conf, registry.Read)
	for _, p := range r.Problems {
		conf.Log.Warn("CDI spec "+p.Path, "reason", p.Reason)
	}
	return err
}

// pruneTime is how long one berth discover removes tasks. The next one continues.
const pruneTime = 5 * time.Second

// pruneExpired removes ended tasks beyond run.keep_ended and run.keep_count.
func pruneExpired(ctx context.Context, conf berth.Config) {
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	if err := control.PruneEnded(ctx, backend.TaskStore(conf), backend.Retention(conf), nil); err != nil {
		conf.Log.Warn("remove tasks that have ended", "error", err)
	}
}
