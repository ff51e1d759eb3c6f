// Package run has the verb run: its flags become the options of a task or a gang. The launcher starts a task in the
// foreground in this process; detached tasks and gangs are started by a process of their own (launch). The package
// also has the store in which the ranks of a gang meet (rendezvous).
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/image"
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
		return verb.WrongCommandLine(c, "run takes an image: berth run --gpus 1 IMAGE COMMAND"+suggestCount(c.String("gpus")))
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
		err = connectBroker(c.Context, conf, &o, session, req.Lease)
	} else {
		err = connectLedger(c.Context, conf, &o, req.Lease)
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
	request, _, err := parseDeviceFlags(words, words != "" || c.IsSet("gpus"), devices)
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

// connectLedger sets o.Devices for a launch with devices: a lease of its own, or devices of the lease of the berth alloc
// around this process.
func connectLedger(ctx context.Context, conf berth.Config, o *launcher.Options, terms leaseTerms) error {
	if o.Request.IsZero() {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	if o.Request.GPUs() {
		if err := node.MountFiles(ctx); err != nil {
			return err
		}
	}
	own := newOwnLease(node, o.Request, terms)
	if terms.Outer == "" {
		o.Devices = own
		return nil
	}
	lease, err := node.FindOwnLease(terms.Outer)
	if err != nil {
		// Not wrapped: the text has its advice, and ExitStatus must not add another.
		return errors.New(err.Error() + "; unset BERTH_LEASE to take a lease of its own")
	}
	o.Parent = berth.CommandTasks(lease.Owner.Cgroup)
	o.Devices = sharedLease{own, lease}
	return nil
}

// leaseTerms say how a launch gets its devices.
type leaseTerms struct {
	// Wait is how long to wait for busy devices; a negative value means for ever.
	Wait time.Duration
	// Outer is the id of the lease of a berth alloc around the launch, whose devices it gets; "" for a lease of its own.
	Outer string
	// Network is the kind of a gang's network, "" for a task.
	Network string
	// Detached: the lease ends with the task or gang, and not with the berth run that has started it.
	Detached bool
}

// ownLease implements launcher.Devices by a lease of the task's own.
type ownLease struct {
	node    *berth.Node
	request request.Request
	wait    time.Duration
	waiting func(ledger.BusyError)
	// network is the kind of a gang's network, "" for a task.
	network string
	// remark prints urgent remarks; nil prints none.
	remark func(removed []berth.Removal)
}

func newOwnLease(node *berth.Node, r request.Request, terms leaseTerms) ownLease {
	return ownLease{
		node: node, request: r, wait: terms.Wait, waiting: waiting.NewWaitPrinter(time.Now()),
		network: terms.Network, remark: waiting.NewRemarkPrinter(),
	}
}

func (l ownLease) Programs(ctx context.Context, env []string) (map[string]string, error) {
	if err := l.node.CheckGrantable(ctx, l.request); err != nil {
		return nil, verb.NameRequest(err)
	}
	if !l.request.GPUs() {
		return nil, nil // no devices: the node may have no driver
	}
	return l.node.Programs(ctx, env)
}

func (l ownLease) Acquire(ctx context.Context, owner ledger.Owner, r request.Request, queued func()) (ledger.Lease, error) {
	waiting := func(b ledger.BusyError) {
		l.waiting(b)
		queued()
	}
	lease, err := l.node.Acquire(ctx, ledger.Ask{Owner: owner, Request: r, Wait: l.wait, Waiting: waiting})
	return lease, verb.NameRequest(err)
}

func (l ownLease) Prepare(ctx context.Context, lease ledger.Lease, spec *specs.Spec, root *os.File) (launcher.Prepared, error) {
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
		l.node.LogRemovals("prepared", lease.ID, lease.Owner, removed)
	}
	if l.remark != nil {
		l.remark(removed)
	}
	cpus, err := l.node.CPUs(ctx, lease)
	return launcher.Prepared{CPUs: cpus, Removed: removed}, err
}

func (l ownLease) Divide(ctx context.Context, lease ledger.Lease) ([][]gpu.Device, error) {
	inv, err := l.node.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	return match.Divide(inv, l.request, lease.Devices)
}

func (l ownLease) CPUs(ctx context.Context, lease ledger.Lease) (string, error) {
	return l.node.CPUs(ctx, lease)
}

func (l ownLease) Release(ctx context.Context, lease ledger.Lease) error {
	return l.node.Release(ctx, lease.ID)
}

// printUnpacking returns a function that prints the progress of unpacking a layer that takes
// long to standard error.
func printUnpacking(start time.Time) func(image.Progress) {
	var last time.Time
	return func(p image.Progress) {
		now := time.Now()
		if now.Sub(start) < time.Second || now.Sub(last) < time.Second {
			return
		}
		last = now
		if p.Waiting {
			fmt.Fprintf(os.Stderr, "berth: another task is unpacking layer %s; waiting for it\n", output.ShortenDigest(p.Layer))
			return
		}
		fmt.Fprintf(os.Stderr, "berth: unpacking layer %s: %d of %d MB\n", output.ShortenDigest(p.Layer), p.Done>>20, p.Total>>20)
	}
}
