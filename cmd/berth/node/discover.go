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
		Usage: "read what the node has, and prepare it for container starts",
		Description: "Writes the inventory snapshot and the directory of driver files, loads nvidia-uvm and makes\n" +
			"device nodes where they are missing. Run it at boot and after a driver or MIG change; what needs\n" +
			"a fresh snapshot also runs it by itself. The CDI specs of berth cdi generate are renewed with it.\n" +
			"Accelerators are closed to running containers of engines that hold no lease of them. Tasks that\n" +
			"ended longer ago than run.keep_ended are removed, and containers that were never started ended,\n" +
			"but not with --if-stale alone, for which a container's start waits.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "if-stale", Usage: "take no new snapshot if the last one still fits the machine"},
			&cli.BoolFlag{Name: "json", Usage: "print the inventory as JSON"},
			&cli.BoolFlag{Name: "processes", Usage: "with --if-stale, find out all the same which processes without a lease use GPUs, and tidy up as the timer does"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print nothing"},
		},
		OnUsageError: verb.WrongUsage,
		Action: verb.OnHost(func(c *cli.Context, conf berth.Config) error {
			if err := refreshCDI(c.Context, conf); err != nil {
				return err
			}
			discover, began := berth.Discover, time.Now()
			if c.Bool("if-stale") {
				discover = berth.Rediscover
			}
			seen, err := discover(c.Context, conf, backend.NVMLChild(c, "probe", nvmlTotalTimeout), conf.Log)
			// A container's start waits for --if-stale alone: that does no more than it needs.
			timer := c.Bool("if-stale") && c.Bool("processes")
			if timer || !c.Bool("if-stale") {
				pruneExpired(c.Context, conf)
				cleanUpLeases(c.Context, conf)
			}
			if timer && errors.Is(err, berth.ErrNoDriver) && !hasDriver(conf) {
				return nil // a server without GPUs; its containers and tasks were looked after
			}
			if err != nil {
				return err
			}
			if timer || !c.Bool("if-stale") {
				if err := recordProcesses(c, conf, seen.Inventory); err != nil { // the inventory counts all the same
					conf.Log.Warn("processes that use GPUs aren't known", "error", err)
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

// recordProcesses stores the processes without a lease that compute on GPUs. It asks NVML only about GPUs that such a
// process has open: a query would wake a GPU without persistence mode, and the timer makes one each minute.
func recordProcesses(c *cli.Context, conf berth.Config, inv gpu.Inventory) error {
	if !conf.Policy.ChecksInUse() {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	uuids := node.ListOpenDevices(inv)
	if len(uuids) == 0 {
		return node.SaveProcesses(nil)
	}
	gauge := &probe.Gauge{Child: backend.NVMLChild(c, "meter", nvmlTotalTimeout)}
	defer gauge.Close()
	uses, err := gauge.Measure(c.Context, uuids)
	if err != nil {
		return err
	}
	found, err := node.IdentifyProcesses(uses)
	return errors.Join(err, node.SaveProcesses(found))
}

// cleanUpLeases ends containers that hold devices and were never started, and releases the leases of
// dead holders.
func cleanUpLeases(ctx context.Context, conf berth.Config) {
	node, err := berth.Open(conf)
	if err != nil {
		return // as for every other command, which says so
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

// printDiscovered sums up a snapshot; it is an old one if it was taken before this
// program began, and then nothing had to be done.
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

// refreshCDI keeps the list of other vendors' devices. What is wrong with their
// specs is told and stops nothing.
func refreshCDI(ctx context.Context, conf berth.Config) error {
	r, err := berth.RefreshCDI(ctx, conf, registry.Read)
	for _, p := range r.Problems {
		conf.Log.Warn("CDI spec "+p.Path, "reason", p.Reason)
	}
	return err
}

// pruneTime is how long berth discover removes tasks. The next one goes on.
const pruneTime = 5 * time.Second

// pruneExpired removes what isn't to be kept of tasks that have ended.
func pruneExpired(ctx context.Context, conf berth.Config) {
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	if err := control.PruneEnded(ctx, backend.TaskStore(conf), backend.Retention(conf), nil); err != nil {
		conf.Log.Warn("remove tasks that have ended", "error", err)
	}
}
