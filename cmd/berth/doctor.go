package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/doctor"
	"github.com/berth-gpu/berth/cmd/berth/engines"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check whether everything is in place, and say how to fix what isn't",
		Description: "Checks the driver, device nodes, runtimes, cgroups, berth's programs, files and tasks, CDI specs,\n" +
			"and each engine that is installed. Changes nothing, and needs no root, but sees less without.\n" +
			"The exit code is 1 if something fails; warnings alone are no failure.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only what is not ok"},
		},
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			findings := runDoctor(c)
			if c.Bool("json") {
				if err := printJSON(os.Stdout, findings); err != nil {
					return err
				}
			} else {
				newStyledWriter(os.Stdout).printFindings(findings, c.Bool("quiet"))
			}
			for _, f := range findings {
				if f.State == doctor.Failure {
					return exitError{exitFailure, nil}
				}
			}
			return nil
		},
	}
}

// runDoctor makes all checks. A configuration that can't be read is the only finding.
func runDoctor(c *cli.Context) []doctor.Finding {
	conf, err := loadConfig(c)
	if err != nil {
		return []doctor.Finding{{
			ID: "configuration", State: doctor.Failure, About: "configuration", Text: err.Error(),
			Fix: "edit it: every key is explained in the one that is packaged",
		}}
	}
	return doctor.Examine(c.Context, doctorHost(c, conf))
}

// doctorHost returns the machine as this process sees it.
func doctorHost(c *cli.Context, conf berth.Config) doctor.Host {
	h := doctor.Host{Config: conf, ConfigPath: c.String("config"), Berth: conf.Command(), Find: engines.Find, Run: engines.Run}
	h.Engines = func(ctx context.Context, name string) doctor.Engine {
		host := engines.ReadHost(ctx, name)
		return doctor.ReadEngine(host, name, setupOptions(conf, host, otherConfig(c)), engines.AskDaemon(ctx, name))
	}
	if self, err := os.Executable(); err == nil {
		h.Berth = self
	}
	switch {
	case os.Geteuid() != 0:
		h.User = fmt.Sprintf("user %d", os.Geteuid())
	case needHost() != nil:
		h.User = "uid 0 of a user namespace"
	}
	return h
}
