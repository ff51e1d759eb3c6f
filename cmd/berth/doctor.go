package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/doctor"
	"github.com/berth-gpu/berth/hook/setup"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look whether everything is in place, and say how to mend what isn't",
		Description: "Looks at the driver, device nodes, runtimes, cgroups, berth's programs, files and tasks, CDI specs,\n" +
			"and each engine that is installed. Changes nothing, and needs no root, but sees less without.\n" +
			"The exit code is 1 if something fails; warnings alone are no failure.",
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			findings := examine(c)
			if c.Bool("json") {
				if err := printJSON(os.Stdout, findings); err != nil {
					return err
				}
			} else {
				paperFor(os.Stdout).findings(findings)
			}
			for _, f := range findings {
				if f.State == setup.Failure {
					return exitError{exitFailure, nil}
				}
			}
			return nil
		},
	}
}

// findings prints one line each.
func (p paper) findings(all []doctor.Finding) {
	colours := map[setup.State]string{setup.OK: "32", setup.Warning: "33", setup.Failure: "31"}
	for _, f := range all {
		state := fmt.Sprintf("%-7s", f.State)
		if p.colours {
			state = "\x1b[" + colours[f.State] + "m" + state + "\x1b[0m"
		}
		line := fmt.Sprintf("%s  %-13s  %s", state, f.About, oneLine(f.Text))
		if f.Mend != "" {
			line += "; mend: " + oneLine(f.Mend)
		}
		fmt.Fprintln(p, line)
	}
}

func examine(c *cli.Context) []doctor.Finding {
	conf, err := config(c)
	if err != nil {
		return []doctor.Finding{{
			ID: "configuration", State: setup.Failure, About: "configuration", Text: err.Error(),
			Mend: "edit it: every key is explained in the one that is packaged",
		}}
	}
	all := doctor.Examine(c.Context, patient(c, conf))
	before := len(all)
	for _, engine := range setup.Engines() {
		for _, f := range diagnose(c, conf, engine) {
			all = append(all, doctor.Finding{ID: "engines." + engine, State: f.State, About: f.About, Text: f.Text, Mend: f.Mend})
		}
	}
	if len(all) == before {
		all = append(all, doctor.Finding{
			ID: "engines", State: setup.OK, About: "engines",
			Text: "neither docker nor containerd nor podman is installed; berth run and berth alloc need none",
		})
	}
	return all
}

// patient is this machine as this process sees it.
func patient(c *cli.Context, conf berth.Config) doctor.Host {
	h := doctor.Host{Config: conf, ConfigPath: c.String("config"), Berth: conf.Command(), Find: found, Run: said}
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

// found looks for a program where PATH says.
func found(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// said is what a program prints.
func said(ctx context.Context, words ...string) (string, error) {
	out, wrong := call(ctx, words...)
	if wrong != "" {
		return "", errors.New(wrong)
	}
	return out, nil
}

func diagnose(c *cli.Context, conf berth.Config, name string) []setup.Finding {
	h := thisHost(c.Context, name)
	record, err := setup.LoadRecord(h.FS, conf.Data, name)
	if err != nil {
		state, mend := setup.Failure, "move the file away, then berth setup "+name
		if errors.Is(err, fs.ErrPermission) {
			state, mend = setup.Warning, "sudo berth doctor"
		}
		return []setup.Finding{{State: state, About: name, Text: err.Error(), Mend: mend}}
	}
	j := setupJob{engine: name, conf: conf, host: h}
	o := setup.Options{Config: otherConfig(c), Data: conf.Data, Hook: conf.HookCommand(), Crun: j.crun()}
	o.Runtime = filepath.Join(filepath.Dir(o.Hook), "berth-runtime")
	o.CountIndices = conf.Policy.NVIDIAIndices == "count"
	return setup.Diagnose(name, h, o, record, running(c.Context, name))
}
