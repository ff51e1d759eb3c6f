package setup

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// CDICommand is berth cdi.
func CDICommand() *cli.Command {
	return &cli.Command{
		Name:  "cdi",
		Usage: "offer GPUs to engines as CDI devices, and list other vendors' devices",
		Description: "CDI specs list names of devices for engines. berth cdi generate writes specs whose names are requests:\n" +
			"docker run --device berth/gpus=2. Discovery keeps them up to date. Other vendors' devices are leased by\n" +
			"their names if policy.cdi allows them: berth run --gpus 1,vendor.example/nic=port0.",
		HideHelpCommand: true,
		OnUsageError:    verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				name := c.Args().First()
				return verb.WrongCommandLine(c, fmt.Sprintf("there is no verb %q%s", name, spell.Suggestion(name, "generate", "remove", "list", "validate")))
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: []*cli.Command{cdiGenerateCommand(), cdiRemoveCommand(), cdiListCommand(), cdiValidateCommand()},
	}
}

func cdiListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list CDI devices: other vendors', and those of berth's menu",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := verb.CheckNoArguments(c); err != nil {
				return err
			}
			conf, err := verb.LoadConfig(c)
			if err != nil {
				return err
			}
			node, err := berth.Open(conf)
			if err != nil {
				return err
			}
			view, err := backend.ViewLeases(c.Context, node)
			if err != nil {
				return err
			}
			r := registry.Read(conf.Host.CDI)
			seen := surveyCDI(conf, r, view, func(name string) error { return node.CheckCDI(r, name) })
			if c.Bool("json") {
				return output.PrintJSON(os.Stdout, seen)
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
	// State is "request" (a device of berth's own specs: each use takes a lease), "free",
	// "leased", "not allowed" (by policy.cdi) or "refused" (under any policy, for Reason).
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
				continue // the spec wasn't generated, or is among the problems
			}
			for _, d := range s.Devices {
				l.Devices = append(l.Devices, cdiDevice{Name: kind + "=" + d.Name, State: "request", Spec: path})
			}
		}
	}
	devices := r.Devices()
	for _, s := range r.Specs {
		for range s.Devices {
			l.Devices = append(l.Devices, foreignDevice(conf, s, devices[0], view, check))
			devices = devices[1:]
		}
	}
	return l
}

func foreignDevice(conf berth.Config, s foreign.Spec, device gpu.Device, view ledger.View, check func(name string) error) cdiDevice {
	name := device.UUID
	d := cdiDevice{Name: name, State: "free", Spec: s.Path}
	if !foreign.Allowed(name, conf.Policy.CDI) {
		d.State = "not allowed"
	} else if err := check(name); err != nil {
		d.State, d.Reason = "refused", err.Error()
	}
	for i, lease := range view.Leases {
		if lease.Live && slices.ContainsFunc(lease.Devices, device.Conflicts) {
			d.State, d.Reason, d.Lease = "leased", "", &view.Leases[i]
		}
	}
	return d
}

func (l cdiList) print(w, problems io.Writer) error {
	for _, p := range l.Problems {
		fmt.Fprintln(problems, printable.Line("berth: CDI spec "+p.Path+": "+p.Reason))
	}
	if len(l.Devices) == 0 {
		_, err := fmt.Fprintln(w, "there are no CDI devices; berth cdi generate writes specs of berth's devices")
		return err
	}
	rows := [][]string{{"DEVICE", "STATE", "HOLDER", "SPEC"}}
	for _, d := range l.Devices {
		who := "-"
		if d.Lease != nil {
			who = output.FormatHolder(d.Lease.Owner)
		}
		rows = append(rows, []string{d.Name, d.State, who, d.Spec})
	}
	return output.PrintTable(w, rows)
}

func cdiValidateCommand() *cli.Command {
	return &cli.Command{
		Name:         "validate",
		Usage:        "check CDI specs, all of the host's or those given",
		ArgsUsage:    "[FILE…]",
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			conf, err := verb.LoadConfig(c)
			if err != nil {
				return err
			}
			if c.NArg() > 0 {
				return validateFiles(c.Args().Slice())
			}
			r := registry.Read(conf.Host.CDI)
			for _, p := range r.Problems {
				verb.PrintError("CDI spec " + p.Path + ": " + p.Reason)
			}
			if n := len(r.Problems); n > 0 {
				return verb.WithCode(verb.ExitFailure, nil)
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
			verb.PrintError(err.Error())
			failed = true
			continue
		}
		fmt.Printf("%s: %s, %s\n", path, s.Kind, output.FormatCount(len(s.Devices), "device"))
	}
	if failed {
		return verb.WithCode(verb.ExitFailure, nil)
	}
	return nil
}
