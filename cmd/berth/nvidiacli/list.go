package nvidiacli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/requirement"
)

// openNode returns the node, and the directory of berth's state.
func openNode(c *cli.Context) (node *berth.Node, state string, err error) {
	if err := verb.CheckNoArguments(c); err != nil {
		return nil, "", err
	}
	conf, err := loadConfig(c)
	if err != nil {
		return nil, "", err
	}
	node, err = berth.Open(conf)
	return node, conf.State, err
}

// runInfo prints the driver's versions, and the GPUs of the lease if there is one.
func runInfo(c *cli.Context) error {
	node, state, err := openNode(c)
	if err != nil {
		return err
	}
	inv, err := node.Inventory(c.Context)
	if err != nil {
		return err
	}
	lease, err := leasing.FindAround(c.Context, node, state)
	if err != nil && !errors.Is(err, leasing.ErrNoLease) {
		return err
	}
	var leased []gpu.GPU
	for _, g := range inv.GPUs {
		if slices.ContainsFunc(lease.Devices, func(d gpu.Device) bool { return d.UUID == g.UUID || d.Parent == g.UUID }) {
			leased = append(leased, g)
		}
	}
	return printInfo(c.App.Writer, inv.Driver, leased, c.Bool("csv"))
}

// printInfo prints the driver and GPUs in the form of NVIDIA's program.
func printInfo(w io.Writer, d gpu.Driver, gpus []gpu.GPU, csv bool) error {
	const pair = "%-15s %s\n"
	fields := []string{"Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture"}
	var text strings.Builder
	if csv {
		fmt.Fprintf(&text, "NVRM version,CUDA version\n%s,%s\n\n%s\n", d.Version, d.CUDA, strings.Join(fields, ","))
	} else {
		fmt.Fprintf(&text, pair+pair, "NVRM version:", d.Version, "CUDA version:", d.CUDA)
	}
	for _, g := range gpus {
		values := []string{strconv.Itoa(g.Index), strconv.Itoa(g.Minor), g.Model, requirement.Brand(g.Model), g.UUID, g.PCI, g.ComputeCapability}
		if csv {
			text.WriteString(strings.Join(values, ",") + "\n")
			continue
		}
		text.WriteString("\n")
		for i, name := range fields {
			fmt.Fprintf(&text, pair, name+":", values[i])
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// runList prints the paths of the lease's devices and of the driver's files on the host.
func runList(c *cli.Context) error {
	node, state, err := openNode(c)
	if err != nil {
		return err
	}
	lease, err := findLease(c, node, state)
	if err != nil {
		return err
	}
	all, err := node.Explain(c.Context, &specs.Spec{Process: &specs.Process{Env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}}}, lease, nil)
	if err != nil {
		return err
	}
	for _, kind := range wantedKinds(c) {
		var paths []string
		for _, i := range all {
			switch {
			case i.Kind != kind:
			case kind == "device":
				paths = append(paths, i.Name)
			default:
				paths = append(paths, i.Source)
			}
		}
		slices.Sort(paths)
		for _, p := range slices.Compact(paths) {
			if _, err := fmt.Fprintln(c.App.Writer, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantedKinds returns the kinds of [berth.Injection] that the flags of list name, all without flags.
func wantedKinds(c *cli.Context) (kinds []string) {
	for _, k := range []struct{ flag, kind string }{{"device", "device"}, {"binaries", "program"}, {"libraries", "library"}, {"ipcs", "socket"}} {
		if c.NumFlags() == 0 || c.IsSet(k.flag) {
			kinds = append(kinds, k.kind)
		}
	}
	return kinds
}
