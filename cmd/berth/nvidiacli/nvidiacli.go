// Package nvidiacli answers the calls of NVIDIA's nvidia-container-cli by which launchers of containers get GPUs: Apptainer's --nvccli, and
// the hooks of enroot and Sarus. The GPUs are those of the lease that the launcher is part of.
//
// It takes no lease. What it mounts are the edits that every container of berth has (berth.Node.Compose), applied as by berth's hook
// (package inject). A launcher without root calls it in a user namespace, with the environment cleared.
package nvidiacli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Name is the name of NVIDIA's program, and of the verb.
const Name = "nvidia-container-cli"

// AddVerb adds the verb to the command line of a program that has NVIDIA's name.
func AddVerb(args []string) []string {
	if filepath.Base(args[0]) != Name {
		return args
	}
	return append([]string{"berth", Name}, args[1:]...)
}

// Command is berth nvidia-container-cli.
func Command() *cli.Command {
	ids := &cli.StringSliceFlag{Name: "device", Aliases: []string{"d"}, Usage: "the devices with these `IDS`, or all of the lease's"}
	compat := &cli.BoolFlag{Name: "compat32", Usage: "with libraries of 32 bits"}
	return &cli.Command{
		Name:  Name,
		Usage: "give a launcher's container leased GPUs",
		Description: "Launchers of containers call this in place of NVIDIA's program of the same name: Apptainer with\n" +
			"--nvccli, and the hooks of enroot and Sarus. They get the driver and the devices of the lease around\n" +
			"them, and no others: berth alloc 2 -- apptainer exec --nvccli IMAGE COMMAND.\n\n" +
			"A program nvidia-container-cli that is a link to berth is this verb.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "version", Aliases: []string{"V"}, Usage: "print the version"},
			&cli.GenericFlag{Name: "user", Aliases: []string{"u"}, Usage: "without effect, and so are its `IDS`: berth knows its user", Value: new(optional)},
			&cli.BoolFlag{Name: "load-kmods", Aliases: []string{"k"}, Usage: "without effect: berth loads no modules"},
			&cli.StringFlag{Name: "debug", Aliases: []string{"d"}, Usage: "without effect: berth writes no `FILE`"},
		},
		OnUsageError: verb.WrongUsage,
		Action:       printVersion,
		Subcommands: []*cli.Command{
			{
				Name: "info", Usage: "print the driver's versions and the lease's GPUs", OnUsageError: verb.WrongUsage, Action: runInfo,
				Flags: []cli.Flag{&cli.BoolFlag{Name: "csv", Usage: "as CSV"}},
			},
			{
				Name: "list", Usage: "print the paths of devices and of the driver's files", OnUsageError: verb.WrongUsage, Action: runList,
				Flags: []cli.Flag{
					ids, compat,
					&cli.BoolFlag{Name: "libraries", Aliases: []string{"l"}, Usage: "with the driver's libraries"},
					&cli.BoolFlag{Name: "binaries", Aliases: []string{"b"}, Usage: "with the driver's programs"},
					&cli.BoolFlag{Name: "ipcs", Aliases: []string{"i"}, Usage: "with the sockets of the driver's services"},
				},
			},
			{
				Name: "configure", Usage: "mount leased devices and the driver's files below ROOTFS", ArgsUsage: "ROOTFS", OnUsageError: verb.WrongUsage, Action: runConfigure,
				Description: "ROOTFS is the root file system of a container that a launcher is making. The mounts are made in the mount\n" +
					"namespace of this process, or in that of --pid. Without --device nothing is mounted.",
				Flags: append([]cli.Flag{
					ids, compat,
					&cli.IntFlag{Name: "pid", Aliases: []string{"p"}, Usage: "the container's process is `PID`"},
					&cli.StringSliceFlag{Name: "require", Aliases: []string{"r"}, Usage: "fail unless driver and devices fulfil `CONDITION`, as in cuda>=12.4"},
					&cli.StringFlag{Name: "ldconfig", Aliases: []string{"l"}, Usage: "without effect: the loader's cache is written without the `PROGRAM`"},
					&cli.StringFlag{Name: "cuda-compat-mode", Usage: "without effect, whatever the `MODE` is: libraries of a newer driver in the image are used where the GPU allows it"},
					&cli.BoolFlag{Name: "no-cgroups", Usage: "without effect: the device guard decides which devices open"},
				}, capabilityFlags()...),
			},
		},
	}
}

// capabilityFlags are switches for capabilities of the driver.
func capabilityFlags() (flags []cli.Flag) {
	for _, name := range []string{"compute", "utility", "video", "graphics", "display", "ngx"} {
		flags = append(flags, &cli.BoolFlag{Name: name, Usage: "with the driver's files for " + name})
	}
	return flags
}

// optional is a flag whose value may be left out, and doesn't matter.
type optional struct{}

func (*optional) IsBoolFlag() bool { return true }
func (*optional) String() string   { return "" }
func (*optional) Set(string) error { return nil }

// printVersion prints the version in the form of NVIDIA's program.
func printVersion(c *cli.Context) error {
	if !c.Bool("version") {
		return verb.WrongCommandLine(c, Name+" takes info, list or configure")
	}
	_, err := fmt.Fprintf(c.App.Writer, "cli-version: %s\nlib-version: %[1]s\n", c.App.Version)
	return err
}

// loadConfig returns the configuration. A process in a user namespace, with or without uid 0, can't renew the inventory.
func loadConfig(c *cli.Context) (berth.Config, error) {
	conf, err := verb.LoadConfig(c)
	conf.Confined = conf.Confined || userns.IsInside()
	return conf, err
}

// findLease returns the lease around this process with the devices that --device names, all by default. state is the
// directory of berth's state.
func findLease(c *cli.Context, node *berth.Node, state string) (ledger.Lease, error) {
	lease, err := leasing.FindAround(c.Context, node, state)
	if errors.Is(err, leasing.ErrNoLease) {
		return lease, fmt.Errorf("%w: berth alloc 1 -- COMMAND runs a launcher with a GPU of its own", err)
	}
	if err != nil {
		return lease, err
	}
	wanted, err := parseDevices(c.StringSlice("device"))
	if err != nil || wanted.IsAll() {
		return lease, err
	}
	return leasing.ChooseFrom(c.Context, node, lease, wanted)
}

// parseDevices returns the request for the devices of --device: indexes, UUIDs or PCI addresses.
func parseDevices(words []string) (request.Request, error) {
	text := strings.Join(words, ",")
	if text == "" || text == "all" {
		return request.Parse("all")
	}
	r, err := request.Parse("device=" + text)
	if err != nil {
		err = fmt.Errorf("--device: %w", err)
	}
	return r, err
}
