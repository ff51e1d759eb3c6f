package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:  "cdi",
		Usage: "offer GPUs to engines as CDI devices, and see other vendors' devices",
		Description: "Engines know CDI devices by names that a spec lists. berth cdi generate writes such specs, of names\n" +
			"that stand for requests: docker run --device berth/gpus=2. Discovery keeps them up to date.\n" +
			"Other vendors' devices are leased by their names where policy.cdi allows: berth run --gpus 1,vendor.example/nic=port0.",
		HideHelpCommand: true,
		OnUsageError:    wrongUsage,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return wrong(c, fmt.Sprintf("there is no verb %q", c.Args().First()))
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: []*cli.Command{cdiGenerateCommand(), cdiRemoveCommand(), cdiListCommand(), cdiValidateCommand()},
	}
}

func cdiGenerateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "write the specs of berth's devices",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "nvidia", Usage: "offer nvidia.com/gpu=… too, as NVIDIA's tools name GPUs"},
			&cli.BoolFlag{Name: "replace", Usage: "move other specs of nvidia.com/gpu aside; berth cdi remove puts them back"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write into the directory `DIR`, or with - to the standard output (default: the first of host.cdi)"},
		},
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.Bool("replace") && !c.Bool("nvidia") {
				return wrong(c, "--replace goes with --nvidia")
			}
			if err := needHost(); err != nil {
				return err
			}
			conf, err := config(c)
			if err != nil {
				return err
			}
			node, err := berth.Open(conf)
			if err != nil {
				return err
			}
			inv, err := node.Inventory(c.Context)
			if err != nil {
				return err
			}
			m := usualMenu(conf)
			if c.String("output") != "" {
				m.Dir = c.String("output")
			}
			if c.Bool("nvidia") {
				m.Kinds = append(m.Kinds, menu.KindNVIDIA)
				if err := makeWay(conf, c.Bool("replace")); err != nil {
					return err
				}
			}
			if m.Dir == "-" {
				return printMenu(os.Stdout, conf, inv, m.Kinds)
			}
			if m.Dir, err = filepath.Abs(m.Dir); err != nil {
				return err
			}
			paths, err := berth.WriteMenu(conf, inv, m)
			for _, path := range paths {
				fmt.Println(path)
			}
			return err
		},
	}
}

// usualMenu is the menu that is written where nobody says another.
func usualMenu(conf berth.Config) berth.Menu {
	m := berth.Menu{Kinds: []string{menu.KindGPUs, menu.KindWith}}
	if len(conf.Host.CDI) > 0 {
		m.Dir = conf.Host.CDI[0]
	}
	return m
}

func printMenu(w io.Writer, conf berth.Config, inv gpu.Inventory, kinds []string) error {
	for _, kind := range kinds {
		data, err := berth.MenuSpec(conf, inv, kind)
		if err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// aside is the ending of specs that were moved aside: no engine reads such files.
const aside = ".replaced-by-berth"

// makeWay sees to it that nobody else defines NVIDIA's devices: two specs of one
// device make engines refuse it.
func makeWay(conf berth.Config, replace bool) error {
	for _, path := range others(registry.Read(conf.Host.CDI), conf.Host.CDI) {
		if !replace {
			return fmt.Errorf("%s defines %s already, and two specs of a device make engines refuse it; --replace moves it aside", path, menu.KindNVIDIA)
		}
		if err := os.Rename(path, path+aside); err != nil {
			return fmt.Errorf("move CDI spec aside: %w", err)
		}
		fmt.Printf("%s is now %s\n", path, path+aside)
	}
	return nil
}

// others lists the specs of NVIDIA's devices that aren't berth's.
func others(r foreign.Registry, dirs []string) []string {
	var paths []string
	add := func(path string) {
		if !slices.Contains(paths, path) && filepath.Base(path) != menu.FileName(menu.KindNVIDIA) {
			paths = append(paths, path)
		}
	}
	for _, s := range r.Specs {
		if s.Kind == menu.KindNVIDIA {
			add(s.Path)
		}
	}
	// A spec whose devices all conflict with another's is among the problems.
	for _, p := range r.Problems {
		if s, err := registry.Validate(p.Path); err == nil && s.Kind == menu.KindNVIDIA && slices.Contains(dirs, filepath.Dir(p.Path)) {
			add(p.Path)
		}
	}
	return paths
}

func cdiRemoveCommand() *cli.Command {
	return &cli.Command{
		Name:         "remove",
		Usage:        "take berth's specs away, and put back what they replaced",
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			conf, err := config(c)
			if err != nil {
				return err
			}
			if err := needHost(); err != nil {
				return err
			}
			if err := berth.RemoveMenu(conf); err != nil {
				return err
			}
			for _, dir := range conf.Host.CDI {
				moved, err := filepath.Glob(filepath.Join(dir, "*"+aside))
				if err != nil {
					return err
				}
				for _, path := range moved {
					if err := putBack(path, strings.TrimSuffix(path, aside)); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
}

// putBack gives a spec its name again, unless there is a newer one of that name.
func putBack(from, to string) error {
	err := os.Link(from, to)
	switch {
	case errors.Is(err, os.ErrExist):
		fmt.Fprintf(os.Stderr, "berth: %s stays, for there is a new %s\n", from, to)
		return nil
	case err != nil:
		return fmt.Errorf("put CDI spec back: %w", err)
	}
	fmt.Printf("%s is back\n", to)
	return os.Remove(from)
}

func cdiListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list CDI devices: other vendors', and those of berth's menu",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
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
			node, err := berth.Open(conf)
			if err != nil {
				return err
			}
			view, err := node.View()
			if err != nil {
				return err
			}
			r := registry.Read(conf.Host.CDI)
			seen := surveyCDI(conf, r, view, func(name string) error { return node.CheckCDI(r, name) })
			if c.Bool("json") {
				return printJSON(os.Stdout, seen)
			}
			return seen.print(os.Stdout, os.Stderr)
		},
	}
}

// cdiList is the output of berth cdi list --json.
type cdiList struct {
	Devices  []cdiDevice       `json:"devices"`
	Problems []foreign.Problem `json:"problems"`
}

type cdiDevice struct {
	Name string `json:"name"`
	// State is "request" (of berth's menu: each use takes a lease), "free", "leased",
	// "not allowed" (by policy.cdi) or "refused" (whatever policy says, for the reason).
	State  string         `json:"state"`
	Reason string         `json:"reason,omitempty"`
	Spec   string         `json:"spec"`
	Lease  *ledger.Status `json:"lease,omitempty"`
}

func surveyCDI(conf berth.Config, r foreign.Registry, view ledger.View, check func(name string) error) cdiList {
	l := cdiList{Devices: []cdiDevice{}, Problems: append([]foreign.Problem{}, r.Problems...)}
	for _, kind := range []string{menu.KindGPUs, menu.KindWith, menu.KindNVIDIA} {
		for _, dir := range conf.Host.CDI {
			path := filepath.Join(dir, menu.FileName(kind))
			s, err := registry.Validate(path)
			if err != nil {
				continue // not generated, or a problem that is listed already
			}
			for _, d := range s.Devices {
				l.Devices = append(l.Devices, cdiDevice{Name: kind + "=" + d.Name, State: "request", Spec: path})
			}
		}
	}
	for _, s := range r.Specs {
		for _, d := range s.Devices {
			l.Devices = append(l.Devices, foreignDevice(conf, s, s.Kind+"="+d.Name, view, check))
		}
	}
	return l
}

func foreignDevice(conf berth.Config, s foreign.Spec, name string, view ledger.View, check func(name string) error) cdiDevice {
	d := cdiDevice{Name: name, State: "free", Spec: s.Path}
	if !foreign.Allowed(name, conf.Policy.CDI) {
		d.State = "not allowed"
	} else if err := check(name); err != nil {
		d.State, d.Reason = "refused", err.Error()
	}
	for i, lease := range view.Leases {
		if lease.Live && slices.Contains(lease.Devices, gpu.CDIDevice(name)) {
			d.State, d.Reason, d.Lease = "leased", "", &view.Leases[i]
		}
	}
	return d
}

func (l cdiList) print(w, problems io.Writer) error {
	for _, p := range l.Problems {
		fmt.Fprintln(problems, "berth: CDI spec "+p.Path+": "+p.Reason)
	}
	if len(l.Devices) == 0 {
		_, err := fmt.Fprintln(w, "there are no CDI devices; berth cdi generate writes berth's own")
		return err
	}
	rows := [][]string{{"DEVICE", "STATE", "HOLDER", "SPEC"}}
	for _, d := range l.Devices {
		who := "-"
		if d.Lease != nil {
			who = holder(d.Lease.Owner)
		}
		rows = append(rows, []string{d.Name, d.State, who, d.Spec})
	}
	return table(w, rows)
}

func cdiValidateCommand() *cli.Command {
	return &cli.Command{
		Name:         "validate",
		Usage:        "check CDI specs, all of the host's or those given",
		ArgsUsage:    "[FILE…]",
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			conf, err := config(c)
			if err != nil {
				return err
			}
			if c.NArg() > 0 {
				return validateFiles(c.Args().Slice())
			}
			r := registry.Read(conf.Host.CDI)
			for _, p := range r.Problems {
				fmt.Fprintf(os.Stderr, "berth: CDI spec %s: %s\n", p.Path, p.Reason)
			}
			if n := len(r.Problems); n > 0 {
				return exitError{exitFailure, nil}
			}
			fmt.Printf("the CDI specs in %s are valid\n", strings.Join(conf.Host.CDI, " and "))
			return nil
		},
	}
}

func validateFiles(paths []string) error {
	failed := false
	for _, path := range paths {
		s, err := registry.Validate(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "berth: "+oneLine(err.Error()))
			failed = true
			continue
		}
		fmt.Printf("%s: %s, %s\n", path, s.Kind, plural(len(s.Devices), "device"))
	}
	if failed {
		return exitError{exitFailure, nil}
	}
	return nil
}

// refreshCDI keeps the list of other vendors' devices. What is wrong with their
// specs is told and stops nothing.
func refreshCDI(conf berth.Config, log *slog.Logger) error {
	r, err := berth.RefreshCDI(conf, registry.Read)
	for _, p := range r.Problems {
		log.Warn("CDI spec "+p.Path, "reason", p.Reason)
	}
	return err
}
