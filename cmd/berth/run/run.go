// Package run has the verb run: its flags become the options of a task or a gang. The launcher starts a task in the
// foreground in this process; detached tasks and gangs are started by a process of their own (launch). The package
// also has the store in which the ranks of a gang meet (rendezvous).
package run

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher"
)

// Command is berth run.
func Command() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run a container with GPUs of its own",
		ArgsUsage: "IMAGE [COMMAND [ARG…]]",
		Description: "The container's files are removed at its end. Those of a detached task are kept until berth rm.\n\n" +
			"Users without root run tasks of their own where the admin has started berth-broker. User 0 of\nsuch a task is the user outside, and its other users are their subordinate ids (/etc/subuid).\n\n" + gangHelp + "\n\n" + imageHelp + "\n\n" + waiting.RequestHelp,
		OnUsageError: verb.WrongUsage,
		BashComplete: backend.CompleteImages,
		Action:       run,
		Flags:        slices.Concat(inCategory("Gangs", gangFlags()), runFlags(), inCategory("Life of the task", lifecycleFlags()), inCategory("Images", pullFlags()), inCategory("Devices", waiting.Flags())),
	}
}

func run(c *cli.Context) error {
	if err := checkCommandLine(c); err != nil {
		return err
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	other, err := backend.ChooseEngine(c, conf)
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	if isGang(c) {
		return verb.WithBerthCode(runGang(c, conf))
	}
	return verb.WithBerthCode(runTask(c, conf, other))
}

// checkCommandLine refuses flags and arguments that exclude each other.
func checkCommandLine(c *cli.Context) error {
	if c.NArg() == 0 && !c.IsSet("gang") {
		return verb.WrongCommandLine(c, "run takes an image: berth run --gpus 1 IMAGE COMMAND"+leasing.SuggestCount(c.String("gpus")))
	}
	if err := refuseOtherTools(c); err != nil {
		return err
	}
	if err := waiting.CheckFlags(c); err != nil {
		return err
	}
	return checkGang(c)
}

// runTask runs a single task: on the engine other unless that is nil, detached, or in the
// foreground.
func runTask(c *cli.Context, conf berth.Config, other *backend.Engine) error {
	if os.Geteuid() != 0 && other == nil {
		return rootless.Run(c, conf) // before files are read, which may be pipes
	}
	o, err := launchOptions(c, conf)
	if err != nil {
		return err
	}
	session, inNamespace, err := openSession(conf)
	if err != nil {
		return err
	}
	if other != nil {
		return runOnEngine(c, other, o)
	}
	if o.Request, err = devicesRequest(c); err != nil {
		return err
	}
	if err := checkVisibleDevices(c, o.Request); err != nil {
		return err
	}
	req, err := newLaunchRequest(c, o.Request)
	if err != nil {
		return err
	}
	if c.Bool("detach") {
		req.Task = &o
		return launchAndPrint(c, req, session)
	}
	if inNamespace {
		err = leasing.ConnectBroker(c.Context, conf, &o, session, req.Lease)
	} else {
		err = leasing.ConnectLedger(c.Context, conf, &o, req.Lease)
	}
	if err != nil {
		return err
	}
	return launchTask(c, conf, o)
}

// openSession returns the connection to the process outside if this process is root of a user namespace for a user without
// root. Otherwise it returns an error unless this process is root of the host.
func openSession(conf berth.Config) (session *helper.Session, inNamespace bool, err error) {
	session, inNamespace, err = rootless.Open(conf)
	if err == nil && !inNamespace {
		err = verb.NeedRoot()
	}
	return session, inNamespace, err
}

// launchTask runs a task in the foreground.
func launchTask(c *cli.Context, conf berth.Config, o launcher.Options) error {
	if err := c.Err(); err != nil { // a signal that came before the launcher handles signals
		return err
	}
	// The launcher handles signals itself, so ctx must not end the task.
	code, err := launcher.Run(context.WithoutCancel(c.Context), o)
	if err != nil || code != 0 {
		return verb.WithCode(code, nameLargestTask(conf, newCommandHint(c).add(code, err)))
	}
	return nil
}

// devicesRequest returns the request of --gpus, --device and --nics, or, without these flags,
// a request for all devices of the lease of a berth alloc around this process. It is zero for
// no devices.
func devicesRequest(c *cli.Context) (request.Request, error) {
	words, devices := c.String("gpus"), c.StringSlice("device")
	if !c.IsSet("gpus") && len(devices) == 0 && os.Getenv("BERTH_LEASE") != "" {
		words = "all"
	}
	request, _, err := leasing.ParseDeviceFlags(words, words != "" || c.IsSet("gpus"), devices)
	if err != nil {
		return request, err
	}
	return addNICs(c, "", "", request)
}

// checkVisibleDevices refuses --env NVIDIA_VISIBLE_DEVICES=… without a request: NVIDIA's runtime would
// give the container GPUs, berth gives none.
func checkVisibleDevices(c *cli.Context, r request.Request) error {
	for _, kv := range c.StringSlice("env") {
		name, value, _ := strings.Cut(kv, "=")
		if name != "NVIDIA_VISIBLE_DEVICES" || !r.IsZero() || c.IsSet("gpus") || value == "" || value == "void" || value == "none" {
			continue
		}
		ask := "device=" + value
		if value == "all" {
			ask = value
		}
		return fmt.Errorf("--env %s gives no GPUs: --gpus %s asks for them", kv, ask)
	}
	return nil
}
