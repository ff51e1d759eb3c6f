package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/image"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:         "run",
		Usage:        "run a container with GPUs of its own",
		ArgsUsage:    "IMAGE [COMMAND [ARG…]]",
		Description:  "What the container writes is thrown away at its end, unless it is detached: berth rm does so then.\n\n" + gangHelp + "\n\n" + imageHelp + "\n\n" + requestHelp,
		OnUsageError: wrongUsage,
		BashComplete: completeImages,
		Action:       run,
		Flags:        slices.Concat(inCategory("Gangs", gangFlags()), runFlags(), inCategory("Life of the task", lifecycleFlags()), inCategory("Images", pullFlags()), inCategory("Devices", waitFlags())),
	}
}

func run(c *cli.Context) error {
	if c.NArg() == 0 && !c.IsSet("gang") {
		return wrongCommandLine(c, "run takes an image: berth run --gpus 1 IMAGE COMMAND")
	}
	if err := checkWait(c); err != nil {
		return err
	}
	if err := checkGang(c); err != nil {
		return err
	}
	conf, err := loadConfig(c)
	if err != nil {
		return exitError{exitBerth, err}
	}
	other, err := engineOf(c, conf)
	if err != nil {
		return exitError{exitBerth, err}
	}
	if isGang(c) {
		return runGang(c, conf)
	}
	o, err := launchOptions(c, conf)
	if err != nil {
		return exitError{exitBerth, err}
	}
	if err := needRoot(); err != nil {
		return exitError{exitBerth, err}
	}
	if other != nil {
		return exitError{exitBerth, runElsewhere(c, other, o)}
	}
	if o.Request, err = devicesRequest(c); err != nil {
		return exitError{exitBerth, err}
	}
	outer := os.Getenv("BERTH_LEASE")
	if c.Bool("detach") && (outer == "" || o.Request.IsZero()) {
		req := newLaunchRequest(c, o.Request)
		req.Task = &o
		return launchAndPrint(c, req)
	}
	if !o.Request.IsZero() {
		if err := openBerths(c, conf, &o, outer); err != nil {
			return exitAs(err)
		}
	}
	if err := c.Err(); err != nil { // a signal that the launcher wouldn't hear of
		return exitAs(err)
	}
	// The launcher passes signals on itself; none shall end the task by way of ctx.
	code, err := launcher.Run(context.WithoutCancel(c.Context), o)
	if err != nil || code != 0 {
		return exitError{code, nameLargestTask(conf, newCommandHint(c).add(code, err))}
	}
	return nil
}

// devicesRequest is what is asked for by --gpus, --device and --nics, or by the lease of a
// berth alloc around this process: all of it. It is zero for no devices.
func devicesRequest(c *cli.Context) (request.Request, error) {
	words, devices := c.String("gpus"), c.StringSlice("device")
	if !c.IsSet("gpus") && len(devices) == 0 && os.Getenv("BERTH_LEASE") != "" {
		words = "all"
	}
	request, _, err := parseDeviceFlags(words, words != "" || c.IsSet("gpus"), devices)
	if err != nil {
		return request, err
	}
	return addNICs(c, "", "", request)
}

// openBerths connects the launcher with the ledger: for a lease of the task's own, or for the
// devices of the lease of a berth alloc around this process, outer.
func openBerths(c *cli.Context, conf berth.Config, o *launcher.Options, outer string) error {
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	if o.Request.GPUs() {
		if err := node.MountFiles(c.Context); err != nil {
			return err
		}
	}
	if outer == "" {
		o.Berths = leased{node: node, request: o.Request, wait: waitOf(c), waiting: sayWaiting(time.Now()), remark: sayUrgent()}
		return nil
	}
	lease, err := node.Held(outer)
	if err != nil {
		// Not wrapped: this is the way out, and no other is to be added.
		return errors.New(err.Error() + "; unset BERTH_LEASE to take a lease of its own")
	}
	if c.Bool("detach") {
		return fmt.Errorf("a detached task would outlive the lease %s of the berth alloc around this process; unset BERTH_LEASE to take one of its own", lease.ID)
	}
	o.Parent = lease.Owner.Cgroup
	o.Berths = shared{leased{node: node, request: o.Request, remark: sayUrgent()}, lease}
	return nil
}

// leased is where the launcher's devices come from: a lease of its own.
type leased struct {
	node    *berth.Node
	request request.Request
	wait    time.Duration
	waiting func(ledger.BusyError)
	// network is the kind of a gang's, "" for a task's.
	network string
	// remark shows the urgent ones of what was removed to the user; nil shows none.
	remark func(removed []berth.Removal)
}

func (l leased) Programs(ctx context.Context, env []string) (map[string]string, error) {
	if err := l.node.Grantable(ctx, l.request); err != nil {
		return nil, nameRequest(err)
	}
	if !l.request.GPUs() {
		return nil, nil // and the node may have no driver
	}
	return l.node.Programs(ctx, env)
}

func (l leased) Acquire(ctx context.Context, owner ledger.Owner, r request.Request) (ledger.Lease, error) {
	lease, err := l.node.Acquire(ctx, ledger.Ask{Owner: owner, Request: r, Wait: l.wait, Waiting: l.waiting})
	return lease, nameRequest(err)
}

func (l leased) Prepare(ctx context.Context, lease ledger.Lease, spec *specs.Spec, root *os.File) (launcher.Prepared, error) {
	if l.network != "" {
		if spec.Annotations == nil {
			spec.Annotations = map[string]string{}
		}
		spec.Annotations[berth.NetworkAnnotation] = l.network
	}
	removed, err := l.node.Prepare(ctx, spec, &lease, root)
	if err != nil {
		return launcher.Prepared{}, err
	}
	if len(removed) > 0 {
		l.node.Tell("prepared", lease.ID, lease.Owner, removed)
	}
	if l.remark != nil {
		l.remark(removed)
	}
	cpus, err := l.node.CPUs(ctx, lease)
	return launcher.Prepared{CPUs: cpus, Removed: removed}, err
}

func (l leased) Divide(ctx context.Context, lease ledger.Lease) ([][]gpu.Device, error) {
	inv, err := l.node.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	return match.Divide(inv, l.request, lease.Devices)
}

func (l leased) CPUs(ctx context.Context, lease ledger.Lease) (string, error) {
	return l.node.CPUs(ctx, lease)
}

func (l leased) Release(ctx context.Context, lease ledger.Lease) error {
	return l.node.Release(ctx, lease.ID)
}

// sayUrgent writes urgent remarks (limits that are too low for NICs) to standard error. It
// does so once: all ranks of a gang have the same.
func sayUrgent() func(removed []berth.Removal) {
	var once sync.Once
	return func(removed []berth.Removal) {
		urgent := slices.DeleteFunc(slices.Clone(removed), func(r berth.Removal) bool { return !r.Urgent })
		if len(urgent) == 0 {
			return
		}
		once.Do(func() {
			for _, r := range urgent {
				printError(r.Name)
			}
		})
	}
}

// sayUnpacking reports on standard error when unpacking a layer takes long enough
// for a person to wonder.
func sayUnpacking(start time.Time) func(image.Progress) {
	var last time.Time
	return func(p image.Progress) {
		now := time.Now()
		if now.Sub(start) < time.Second || now.Sub(last) < time.Second {
			return
		}
		last = now
		if p.Waiting {
			fmt.Fprintf(os.Stderr, "berth: another task is unpacking layer %s; waiting for it\n", abbreviateID(strings.TrimPrefix(p.Layer, "sha256:")))
			return
		}
		fmt.Fprintf(os.Stderr, "berth: unpacking layer %s: %d of %d MB\n", abbreviateID(strings.TrimPrefix(p.Layer, "sha256:")), p.Done>>20, p.Total>>20)
	}
}
