package run

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
)

// runOnEngine replaces this process by the engine's program, which runs the task. It returns
// only on error.
func runOnEngine(c *cli.Context, e *backend.Engine, o launcher.Options) error {
	if os.Getenv("BERTH_LEASE") != "" {
		return errors.New("--engine containerd: a container of containerd can't use the lease of the berth alloc around this process; unset BERTH_LEASE to take one of its own")
	}
	if c.Bool("mpi") {
		return errors.New("--mpi: a container of containerd can't be the rank of an MPI launcher; leave out --engine")
	}
	if path := c.String("config"); path != berth.ConfigPath {
		return fmt.Errorf("--engine containerd: berth-runtime reads %s, whatever --config says", berth.ConfigPath)
	}
	run := &engine.Run{Options: o, Detach: c.Bool("detach"), Wait: waiting.Limit(c)}
	runtime, err := chosenRuntime(c)
	if err != nil {
		return err
	}
	run.Options.Runtime, run.Options.Progress = runtime, nil
	devices := c.StringSlice("device")
	request, asks, err := leasing.ParseDeviceFlags(c.String("gpus"), c.IsSet("gpus"), devices)
	if err != nil {
		return err
	}
	if asks {
		run.Devices = request.String()
	}
	req := e.Request
	req.Verb, req.Run = "run", run
	return e.Become(req)
}
