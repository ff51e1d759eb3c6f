package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/snapshot"
)

// nvmlWhole is how long NVML may take: without persistence mode the driver first
// initialises every GPU, which takes seconds; a call that hangs must not hang berth.
const nvmlWhole = 60 * time.Second

// nvmlChild is a process that calls NVML: one that hangs in the driver can't be taken
// back. word says what it is asked.
func nvmlChild(c *cli.Context, word string, timeout time.Duration) probe.Child {
	program, err := programOf("berth-nvml")
	if err != nil {
		program = "/usr/lib/berth/berth-nvml" // who starts it says that it isn't there
	}
	return probe.Child{Path: program, Args: []string{word, c.String("config")}, Timeout: timeout}
}

func discoverCommand() *cli.Command {
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
		OnUsageError: wrongUsage,
		Action: onHost(func(c *cli.Context, conf berth.Config) error {
			log := slog.New(warner{os.Stderr})
			if err := refreshCDI(c.Context, conf, log); err != nil {
				return err
			}
			discover, began := berth.Discover, time.Now()
			if c.Bool("if-stale") {
				discover = berth.Rediscover
			}
			seen, err := discover(c.Context, conf, nvmlChild(c, "probe", nvmlWhole), log)
			// A container's start waits for --if-stale alone: that does no more than it needs.
			timer := c.Bool("if-stale") && c.Bool("processes")
			if timer || !c.Bool("if-stale") {
				pruneExpired(c.Context, conf, log)
				evictUnstarted(c.Context, conf, log)
			}
			if timer && errors.Is(err, berth.ErrNoDriver) && !hasDriver(conf) {
				return nil // a server without GPUs; its containers and tasks were looked after
			}
			if err != nil {
				return err
			}
			if timer || !c.Bool("if-stale") {
				if err := recordProcesses(c, conf, seen.Inventory); err != nil { // the inventory counts all the same
					log.Warn("processes that use GPUs aren't known", "error", err)
				}
			}
			switch {
			case c.Bool("json"):
				return printJSON(os.Stdout, seen.Inventory)
			case c.Bool("quiet"):
				return nil
			}
			return sayDiscovered(os.Stdout, seen, conf.SnapshotPath(), seen.Taken.Before(began))
		}),
	}
}

// hasDriver reports whether the driver's kernel module is loaded. It is true in doubt.
func hasDriver(conf berth.Config) bool {
	version, err := driver.Version(conf.GPUHost())
	return err != nil || version != ""
}

// recordProcesses writes down which processes without a lease compute on GPUs.
func recordProcesses(c *cli.Context, conf berth.Config, inv gpu.Inventory) error {
	uuids := berth.Computable(inv)
	if !conf.Policy.AsksForProcesses() || len(uuids) == 0 {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	gauge := &probe.Gauge{Child: nvmlChild(c, "meter", nvmlWhole)}
	defer gauge.Close()
	uses, err := gauge.Measure(c.Context, uuids)
	if err != nil {
		return err
	}
	found, err := node.IdentifyProcesses(uses)
	return errors.Join(err, node.SaveProcesses(found))
}

// evictUnstarted ends containers that hold devices and were never started.
func evictUnstarted(ctx context.Context, conf berth.Config, log *slog.Logger) {
	node, err := berth.Open(conf)
	if err != nil {
		return // as for every other command, which says so
	}
	ended, err := node.EvictUnstarted(ctx)
	if err != nil {
		log.Warn("end containers that were never started", "error", err)
	}
	for _, l := range ended {
		log.Warn("a container that was never started was ended", "container", l.Owner.Container, "lease", l.ID)
	}
}

// sayDiscovered sums up a snapshot; it is an old one if it was taken before this
// program began, and then nothing had to be done.
func sayDiscovered(w io.Writer, s snapshot.Snapshot, path string, old bool) error {
	inv := s.Inventory
	has := countOf(len(inv.GPUs), "GPU")
	if len(inv.NICs) > 0 {
		has += ", " + countOf(len(inv.NICs), "HCA")
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
