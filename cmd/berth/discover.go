package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/nvml"
	"github.com/berth-gpu/berth/gpu/probe"
)

// How long NVML may take: without persistence mode the driver first initialises
// every GPU, which takes seconds; a call that hangs must not hang berth.
const (
	nvmlCall  = 10 * time.Second
	nvmlWhole = 60 * time.Second
)

func discoverCommand() *cli.Command {
	return &cli.Command{
		Name:  "discover",
		Usage: "read what the node has, and prepare it for container starts",
		Description: "Writes the inventory snapshot and the directory of driver files, loads nvidia-uvm and makes\n" +
			"device nodes where they are missing. Run it at boot and after a driver or MIG change; what needs\n" +
			"a fresh snapshot also runs it by itself.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "if-stale", Usage: "do nothing if the snapshot still fits the machine"},
			&cli.BoolFlag{Name: "json", Usage: "print the inventory as JSON"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print nothing"},
		},
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			conf, err := config(c)
			if err != nil {
				return err
			}
			discover := berth.Discover
			if c.Bool("if-stale") {
				discover = berth.Rediscover
			}
			seen, err := discover(c.Context, conf, probe.Child{
				Path:    "/proc/self/exe",
				Args:    []string{"--config", c.String("config"), "nvml-probe"},
				Timeout: nvmlWhole,
			}, slog.New(warner{os.Stderr}))
			if err != nil {
				return err
			}
			inv := seen.Inventory
			switch {
			case c.Bool("json"):
				return printJSON(os.Stdout, inv)
			case !c.Bool("quiet"):
				has := plural(len(inv.GPUs), "GPU")
				if len(inv.NICs) > 0 {
					has += ", " + plural(len(inv.NICs), "HCA")
				}
				fmt.Printf("%s: driver %s, %s; snapshot in %s\n", inv.Hostname, inv.Driver.Version, has, conf.SnapshotPath())
				for _, g := range inv.GPUs {
					if g.Lost != "" {
						fmt.Printf("GPU %d (%s) is lost: %s\n", g.Index, g.PCI, g.Lost)
					}
				}
			}
			return nil
		},
	}
}

// probeCommand is the half of discover that calls NVML: a process of its own,
// for a call that hangs in the driver can't be taken back.
func probeCommand() *cli.Command {
	return &cli.Command{
		Name:   "nvml-probe",
		Hidden: true,
		Action: func(c *cli.Context) error {
			conf, err := config(c)
			if err != nil {
				return err
			}
			return probe.Serve(c.Context, os.Stdout, nvml.Source{
				Library: nvml.Find(conf.Host.NVML, conf.GPUHost()),
				Timeout: nvmlCall,
			})
		},
	}
}
