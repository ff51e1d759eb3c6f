package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look whether everything is in place, and say how to mend what isn't",
		Description: "Looks at the driver, berth's programs and files, and each engine that is installed. Changes nothing.\n" +
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
func (p paper) findings(all []setup.Finding) {
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

// examination collects what is found.
type examination struct {
	conf     berth.Config
	findings []setup.Finding
}

func (e *examination) add(state setup.State, about, mend, format string, values ...any) {
	e.findings = append(e.findings, setup.Finding{State: state, About: about, Text: fmt.Sprintf(format, values...), Mend: mend})
}

func examine(c *cli.Context) []setup.Finding {
	var e examination
	var err error
	if e.conf, err = config(c); err != nil {
		e.add(setup.Failure, "configuration", "edit it: every key is explained in the one that is packaged", "%v", err)
		return e.findings
	}
	e.add(setup.OK, "configuration", "", "%s", configText(c.String("config")))
	e.driver()
	e.programs()
	e.cgroups()
	e.ledger()
	e.cdi()
	e.toolkit()
	before := len(e.findings)
	for _, engine := range setup.Engines() {
		e.engine(c, engine)
	}
	if len(e.findings) == before {
		e.add(setup.OK, "engines", "", "neither docker nor containerd nor podman is installed; berth run and berth alloc need none")
	}
	return e.findings
}

func configText(path string) string {
	if _, err := os.Stat(path); err != nil {
		return "there is no " + path + ": everything is as it is by itself"
	}
	return path
}

// driver looks at the snapshot, on which every container's start stands.
func (e *examination) driver() {
	s, err := snapshot.Load(e.conf.SnapshotPath(), e.conf.GPUHost())
	if err != nil {
		mend := "berth discover"
		if errors.Is(err, berth.ErrNoDriver) {
			mend = "load the NVIDIA driver, or set host.driver_root"
		}
		state := setup.Failure
		if errors.Is(err, snapshot.ErrStale) {
			state = setup.Warning // the next start takes a new one
		}
		e.add(state, "driver", mend, "%v", err)
		return
	}
	e.add(setup.OK, "driver", "", "%s, %s", s.Inventory.Driver.Version, plural(len(s.Inventory.GPUs), "GPU"))
	for _, g := range s.Inventory.GPUs {
		if g.Lost != "" {
			e.add(setup.Warning, "driver", "the kernel's log has the reason", "GPU %d (%s) is lost: %s", g.Index, g.PCI, g.Lost)
		}
	}
	if _, err := os.Stat(s.DriverDir); s.DriverDir != "" && err != nil {
		e.add(setup.Failure, "driver", "berth discover", "the directory of driver files %s is gone", s.DriverDir)
	}
}

// programs looks for what has to be called.
func (e *examination) programs() {
	runtime, err := exec.LookPath(e.conf.Runtime)
	for _, name := range []string{"crun", "runc"} {
		if e.conf.Runtime == "" && err != nil {
			runtime, err = exec.LookPath(name)
		}
	}
	switch {
	case err == nil:
		e.add(setup.OK, "runtime", "", "berth-runtime becomes %s", runtime)
	case e.conf.Runtime != "":
		e.add(setup.Failure, "runtime", "install it, or set another", "there is no %s, which runtime names", e.conf.Runtime)
	default:
		e.add(setup.Failure, "runtime", "install crun or runc, or set runtime", "neither crun nor runc is there, and no other is configured")
	}
	dir := filepath.Dir(e.conf.HookCommand())
	for _, program := range []string{filepath.Join(dir, "berth-runtime"), e.conf.HookCommand()} {
		if fi, err := os.Stat(program); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
			e.add(setup.Failure, "programs", "install berth's package again", "there is no program %s", program)
		} else {
			e.add(setup.OK, "programs", "", "%s", program)
		}
	}
}

func (e *examination) cgroups() {
	h, err := cgroup.Detect(e.conf.Host.Cgroup)
	if err != nil {
		e.add(setup.Failure, "cgroups", "mount cgroup2 at /sys/fs/cgroup, or set host.cgroup", "%v", err)
		return
	}
	e.add(setup.OK, "cgroups", "", "version %d at %s", h.Version, h.Root)
}

func (e *examination) ledger() {
	node, err := berth.Open(e.conf)
	if err != nil {
		e.add(setup.Failure, "ledger", "", "%v", err)
		return
	}
	view, err := node.View()
	if err != nil {
		e.add(setup.Failure, "ledger", strings.TrimPrefix(advice(err), "; "), "%v", err)
		return
	}
	e.add(setup.OK, "ledger", "", "%s, %d waiting", plural(len(view.Leases), "lease"), len(view.Line))
}

// cdi looks at the specs, berth's own and others'.
func (e *examination) cdi() {
	found := false
	for _, dir := range e.conf.Host.CDI {
		path := filepath.Join(dir, menu.FileName(menu.KindGPUs))
		if s, err := registry.Validate(path); err == nil {
			found = true
			e.add(setup.OK, "cdi", "", "%s, %s", path, plural(len(s.Devices), "device"))
		}
	}
	if !found {
		e.add(setup.Warning, "cdi", "berth cdi generate", "there are no devices berth/gpus=…, so --device berth/gpus=2 is refused")
	}
	for _, p := range registry.Read(e.conf.Host.CDI).Problems {
		e.add(setup.Warning, "cdi", "berth cdi validate says the same once it is right", "%s: %s", p.Path, p.Reason)
	}
}

// toolkit looks whether NVIDIA's is there as well.
func (e *examination) toolkit() {
	for _, name := range []string{"nvidia-container-runtime", "nvidia-ctk"} {
		if path, err := exec.LookPath(name); err == nil {
			e.add(setup.OK, "nvidia", "", "NVIDIA's container toolkit is installed (%s): berth takes what it adds out of berth's containers", path)
			return
		}
	}
}

func (e *examination) engine(c *cli.Context, name string) {
	h := thisHost(c.Context, name)
	record, err := setup.LoadRecord(h.FS, e.conf.Data, name)
	if err != nil {
		state, mend := setup.Failure, "move the file away, then berth setup "+name
		if errors.Is(err, fs.ErrPermission) {
			state, mend = setup.Warning, "sudo berth doctor"
		}
		e.add(state, name, mend, "%v", err)
		return
	}
	j := setupJob{engine: name, conf: e.conf, host: h}
	o := setup.Options{Config: otherConfig(c), Data: e.conf.Data, Hook: e.conf.HookCommand(), Crun: j.crun()}
	o.Runtime = filepath.Join(filepath.Dir(o.Hook), "berth-runtime")
	o.Count = e.conf.Policy.NVIDIAIndices == "count"
	e.findings = append(e.findings, setup.Diagnose(name, h, o, record, running(c.Context, name))...)
}
