package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print berth's version", OnUsageError: wrongUsage,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(os.Stdout, map[string]string{"version": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Printf("berth %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func infoCommand() *cli.Command {
	return &cli.Command{
		Name: "info", Usage: "show what berth is set up with, and how many devices are leased", OnUsageError: wrongUsage,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: onNode(func(c *cli.Context, node *berth.Node) error {
			conf, err := loadConfig(c)
			if err != nil {
				return err
			}
			i, err := readInfo(c, conf, node)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(os.Stdout, i)
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
	// Runtime is the OCI runtime that berth run takes, "" with RuntimeError.
	Runtime      string `json:"runtime,omitempty"`
	RuntimeError string `json:"runtime_error,omitempty"`
	Driver       string `json:"driver,omitempty"`
	// InventoryError says why the devices aren't known.
	InventoryError string         `json:"inventory_error,omitempty"`
	Devices        map[string]int `json:"devices"` // by state, as in berth gpus
	Leases         int            `json:"leases"`  // of living holders
	Waiting        int            `json:"waiting"` // requests in the queue
}

func readInfo(c *cli.Context, conf berth.Config, node *berth.Node) (info, error) {
	i := info{
		Version: version, Config: c.String("config"), State: conf.State, Data: conf.Data,
		Engine: cmp.Or(conf.Run.Engine, "native"), Devices: map[string]int{},
	}
	var err error
	if i.Runtime, err = launcher.ChosenRuntime(launcher.Options{Runtime: conf.Runtime, Cgroup: conf.Host.Cgroup}); err != nil {
		i.RuntimeError = err.Error()
	}
	inv, err := node.Inventory(c.Context)
	if err != nil {
		i.InventoryError = err.Error()
	}
	view, err := node.View()
	if err != nil {
		return i, err
	}
	i.Driver = inv.Driver.Version
	seen := surveyNode(inv, view)
	seen.addProcesses(node.Processes())
	for _, d := range seen.Devices {
		i.Devices[d.State]++
	}
	i.Leases, i.Waiting = countLive(view), len(view.Line)
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
	return printTable(w, [][]string{
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
