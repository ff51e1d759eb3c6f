package node

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
)

// VersionCommand is berth version.
func VersionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print berth's version", OnUsageError: verb.WrongUsage,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}, jsonFormatFlag()},
		Action: func(c *cli.Context) error {
			if err := verb.CheckNoArguments(c); err != nil {
				return err
			}
			all := map[string]string{"version": c.App.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
			if c.String("format") != "" {
				return output.PrintByTemplate(os.Stdout, c.String("format"), all)
			}
			if c.Bool("json") {
				return output.PrintJSON(os.Stdout, all)
			}
			_, err := fmt.Fprintf(c.App.Writer, "berth version %s (%s, %s/%s)\n", c.App.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// InfoCommand is berth info.
func InfoCommand() *cli.Command {
	return &cli.Command{
		Name: "info", Usage: "show berth's configuration and how many devices are leased", OnUsageError: verb.WrongUsage,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}, jsonFormatFlag()},
		Action: verb.OnNode(func(c *cli.Context, node *berth.Node) error {
			conf, err := verb.LoadConfig(c)
			if err != nil {
				return err
			}
			i, err := readInfo(c, conf, node)
			if err != nil {
				return err
			}
			if c.String("format") != "" {
				return output.PrintByTemplate(os.Stdout, c.String("format"), i)
			}
			if c.Bool("json") {
				return output.PrintJSON(os.Stdout, i)
			}
			return i.print(os.Stdout)
		}),
	}
}

// info is the output of berth info --json.
type info struct {
	Version string `json:"version"`
	Config  string `json:"config"`
	State   string `json:"state"`
	Data    string `json:"data"`
	Engine  string `json:"engine"`
	// Runtime is the OCI runtime of berth run, "" if RuntimeError is set.
	Runtime      string `json:"runtime,omitempty"`
	RuntimeError string `json:"runtime_error,omitempty"`
	Driver       string `json:"driver,omitempty"`
	// InventoryError is the reason if the devices are unknown.
	InventoryError string         `json:"inventory_error,omitempty"`
	Devices        map[string]int `json:"devices"` // by state, as in berth gpus
	Leases         int            `json:"leases"`  // of living holders
	Waiting        int            `json:"waiting"` // requests in the queue
}

func readInfo(c *cli.Context, conf berth.Config, node *berth.Node) (info, error) {
	i := info{
		Version: c.App.Version, Config: c.String("config"), State: conf.State, Data: conf.Data,
		Engine: cmp.Or(conf.Run.Engine, "native"), Devices: map[string]int{},
	}
	var err error
	if i.Runtime, err = launcher.ChooseRuntime(launcher.Options{Runtime: conf.Runtime, Cgroup: conf.Host.Cgroup}); err != nil {
		i.RuntimeError = err.Error()
	}
	inv, err := node.Inventory(c.Context)
	if err != nil {
		i.InventoryError = err.Error()
	}
	view, err := backend.ViewLeases(c.Context, node)
	if err != nil {
		return i, err
	}
	i.Driver = inv.Driver.Version
	seen := surveyNode(inv, view)
	seen.addProcesses(node.UnleasedProcesses())
	for _, d := range seen.Devices {
		i.Devices[d.State]++
	}
	i.Leases, i.Waiting = countLive(view), len(view.Queue)
	return i, nil
}

func countLive(view ledger.View) (n int) {
	for _, l := range view.Leases {
		if l.Live {
			n++
		}
	}
	return n
}

func (i info) print(w io.Writer) error {
	devices := ""
	for _, state := range []string{"free", "leased", "sliced", "in use", "lost"} {
		if n := i.Devices[state]; n > 0 {
			devices += fmt.Sprintf(", %d %s", n, state)
		}
	}
	if devices == "" {
		devices = ", none"
	}
	return output.PrintTable(w, [][]string{
		{"Version:", i.Version},
		{"Configuration:", i.Config},
		{"State:", i.State},
		{"Data:", i.Data},
		{"Engine:", i.Engine},
		{"OCI runtime:", cmp.Or(i.Runtime, i.RuntimeError)},
		{"NVIDIA driver:", cmp.Or(i.Driver, i.InventoryError, "none")},
		{"GPUs and slices:", devices[2:]},
		{"Leases:", fmt.Sprintf("%d, %d waiting", i.Leases, i.Waiting)},
	})
}

// jsonFormatFlag returns --format for verbs whose template has the fields of --json.
func jsonFormatFlag() cli.Flag {
	return &cli.StringFlag{Name: "format", Aliases: []string{"f"}, Usage: "print the fields of --json by a Go `TEMPLATE`, as docker does"}
}
