// Package launcher runs a task or a gang without a container engine: it finds the image, mounts a
// root file system whose changes are discarded at the end, takes a lease if devices are requested,
// writes an OCI bundle, and starts crun or runc.
//
// There is no daemon and no database. All state of a task is in its directory:
//
//	DATA/images/           unpacked layers, shared (package image)
//	DATA/tasks/ID/         one task; the directory's flock is held by its launcher
//	    rootfs/            mount point of its root, in a private mount namespace
//	    upper/ work/       what it writes
//	    files/             its /etc/hosts, /etc/hostname and /etc/resolv.conf
//	    bundle/            config.json, the init's pid, the runtime's log
//	    runtime, parent    links to the runtime's program and to the parent cgroup
//	    *.json, log        its records and its output (packages tasks and logs)
//	    stdout, stderr, stdin  pipes to the monitor of a detached task
//	STATE/runtime/NAME/    the state directory of the runtime of that name
//	cgroup PARENT/ID       all processes of the task (package cgroup)
//
// The container of a launcher that is killed keeps running, with its lease; the next berth command
// starts a monitor for it (package control). The launcher of a detached task executes the monitor in
// its own process (package monitor). Setting device rules needs root.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/catatonit"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Options of a task. Only Image is required. JSON leaves out devices, files and callbacks.
type Options struct {
	// Image is a reference as image.Store.Open takes it, and Search how it is looked for.
	Image  string
	Search image.Search
	// Interactive connects Stdin; without it the task's input is /dev/null. With Terminal, the
	// task's terminal reads from Stdin if Stdin is a terminal. Interactive and Terminal together
	// require that Stdin is a terminal.
	Interactive bool
	// Name is the task's name and its hostname; "" means its id.
	Name string
	// Settings decide the container's spec. Network is "host" (the default) or "none", and
	// CPUs "" means those that DeviceSource.Prepare names, or all.
	spec.Settings
	Lifecycle

	// Request is what the task asks Devices for. Devices may be nil: then the task gets none.
	Request request.Request `json:"-"`
	Devices DeviceSource    `json:"-"`

	// Runtime is the path or name of the OCI runtime; "" means the first of crun
	// and runc that works here.
	Runtime string
	// Parent is the cgroup below which the task's own is made, as the host sees it;
	// "" means /berth.
	Parent string
	// Place is set for a launch by root of a user namespace: it moves this process into a cgroup in which the user may make
	// others, and returns the path of that one, which becomes Parent. It is called after DeviceSource.Acquire, when
	// everything has been checked. nil means a launch by root of the machine.
	Place func(ctx context.Context) (parent string, err error) `json:"-"`
	// State, Data and Cgroup are directories: "" means /run/berth,
	// /var/lib/berth and /sys/fs/cgroup.
	State, Data, Cgroup string
	// Config and Inspect are those of tasks.Store.
	Config  string
	Inspect func(context.Context, []ledger.Lease) error `json:"-"`

	// Stdin, Stdout and Stderr become the task's. nil means those of this process.
	Stdin, Stdout, Stderr *os.File `json:"-"`
	// Channel is a socket that becomes the command's descriptor 3, nil for none. It is ignored for
	// detached tasks.
	Channel *os.File `json:"-"`
	// Progress is told about layers being unpacked; it may be nil.
	Progress func(image.Progress) `json:"-"`
	// Fetch pulls an image into Data, in another process. nil: nothing is pulled.
	Fetch func(ctx context.Context, ref string, how image.Search) error `json:"-"`
	// Log gets warnings and information that don't end the launch; nil means nowhere.
	Log *slog.Logger `json:"-"`
}

// DeviceSource leases devices and adds them to specs. All errors end the launch.
type DeviceSource interface {
	// Programs returns the executable files that Prepare will mount: host paths by paths in the
	// container. env is the container's environment, which may choose among them. It is called
	// while the image is unpacked, before Acquire, and also returns an error if the request can
	// never be granted.
	Programs(ctx context.Context, env []string) (map[string]string, error)
	// Acquire takes the devices, or waits in the queue for them. It fills in the
	// owner's process and boot id: this process makes the container. queued is called, in this
	// goroutine, when the request has begun to wait in the queue.
	Acquire(ctx context.Context, owner ledger.Owner, r request.Request, queued func()) (ledger.Lease, error)
	// Prepare puts the lease's devices and device rules into the spec. root is the
	// container's root file system, mounted.
	Prepare(ctx context.Context, l ledger.Lease, spec *specs.Spec, root *os.File) (Prepared, error)
	// Release releases the lease. It is called after the last process of the task has ended.
	Release(ctx context.Context, l ledger.Lease) error
	// Divide returns the devices of a gang's lease by parts of its request.
	Divide(ctx context.Context, l ledger.Lease) ([][]gpu.Device, error)
	// CPUs returns the CPUs near the devices of a lease in list format, or "".
	CPUs(ctx context.Context, l ledger.Lease) (string, error)
}

// Prepared is the result of DeviceSource.Prepare.
type Prepared struct {
	// CPUs near the devices in list format, or "".
	CPUs string
	// Removed is what was removed from the spec. It is recorded with the task.
	Removed []edits.Removal
}

// Run runs a task to its end and returns its exit code: that of its command, or 128 plus the number
// of the signal that ended it. With an error the code is supervise.ExitCode of it: 127 the image has
// no such command, 126 the command can't be executed, 75 devices are busy, 128 plus a signal that
// came before the task ran, 125 everything else; errors of type OutOfMemory and TimedOut have the
// task's own code. After an error nothing is left behind.
//
// Run catches this process's signals and passes them to the task. They get their default actions
// back shortly after it returns. When ctx ends, the task is stopped.
func Run(ctx context.Context, o Options) (int, error) {
	o = o.withDefaults()
	s := supervise.TakeSignals()
	defer func() { go s.Stop() }() // in the background: it waits for s.Ready
	ctx = s.Context(ctx)
	code, err := runTask(ctx, o, s)
	if err != nil {
		return supervise.ExitCode(err), err
	}
	return code, nil
}

func runTask(ctx context.Context, o Options, s *supervise.Signals) (_ int, err error) {
	go warmUp()
	h, err := newHost(o)
	if err != nil {
		return 0, err
	}
	plan, err := o.planSingle(h)
	if err != nil {
		return 0, err
	}
	img, err := o.openImage(ctx)
	if err != nil {
		return 0, err
	}
	defer img.Close()
	programs := o.startProgramLookup(ctx, slices.Concat(img.Config.Env, o.Env))
	if err := o.checkImage(img); err != nil {
		return 0, err
	}
	if err := control.Sweep(ctx, o.taskStore(), h.Cgroups, o.Monitor, o.Retention); err != nil {
		o.Log.Warn("sweep leftovers", "error", err)
	}
	layers, err := o.unpackLayers(ctx, img, programs)
	if err != nil {
		return 0, err
	}
	t, err := newTask(o, h, plan)
	if err != nil {
		return 0, err
	}
	t.programs = programs
	defer func() {
		e := t.cleanUp(context.WithoutCancel(ctx))
		err = errors.Join(err, t.command.Drain(s, e == nil), e)
	}()
	if err := img.NoteLayers(t.paths.Dir, layers); err != nil {
		return 0, err
	}
	if err := t.launch(ctx, img, layers, s); err != nil {
		t.setFailedExit(err)
		return 0, err
	}
	code, err := t.waitForeground(ctx, s)
	if err != nil {
		return 0, err
	}
	t.exit = &tasks.Exit{Code: code, Started: t.rec.Created, Finished: time.Now().UTC()}
	if err := t.outOfMemoryError(); err != nil {
		return code, err
	}
	return code, t.timedOutError()
}

// startProgramLookup calls DeviceSource.Programs in the background and returns a function that waits
// for its result.
func (o Options) startProgramLookup(ctx context.Context, env []string) func() (map[string]string, error) {
	if o.Devices == nil {
		return func() (map[string]string, error) { return nil, nil }
	}
	ask := sync.OnceValues(func() (map[string]string, error) { return o.Devices.Programs(ctx, env) })
	go func() { _, _ = ask() }() // the returned function returns result and error
	return ask
}

// openImage opens the task's image and pulls it if necessary.
func (o Options) openImage(ctx context.Context) (img *image.Image, err error) {
	var fetch func(context.Context, string, image.Search) error
	if o.Fetch != nil {
		fetch = func(ctx context.Context, ref string, how image.Search) error {
			programs := o.startProgramLookup(ctx, o.Env) // the image's environment is not known yet
			return cancelIfUngrantable(ctx, programs, func(ctx context.Context) error { return o.Fetch(ctx, ref, how) })
		}
	}
	return o.imageStore().OpenFetched(ctx, o.Image, o.Search, fetch)
}

// unpackLayers unpacks the layers, which can take minutes.
func (o Options) unpackLayers(ctx context.Context, img *image.Image, programs func() (map[string]string, error)) (layers []string, err error) {
	err = cancelIfUngrantable(ctx, programs, func(ctx context.Context) (err error) {
		layers, err = o.imageStore().Unpack(ctx, img, o.Progress)
		return err
	})
	return layers, err
}

// cancelIfUngrantable calls do and cancels it as soon as programs reports that the request can
// never be granted.
func cancelIfUngrantable(ctx context.Context, programs func() (map[string]string, error), do func(context.Context) error) error {
	doing, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		if _, err := programs(); err != nil {
			giveUp(err)
		}
	}()
	err := do(doing)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil && doing.Err() != nil {
		err = context.Cause(doing)
	}
	_, _ = programs() // wait: Programs may be copying the driver's files
	return err
}

func (o Options) imageStore() image.Store { return image.StoreIn(o.Data) }

// checkImage returns an error if the task is to write to an image that can't be written. A
// directory on a read-only mount has to be refused here, because crun would write to it.
func (o Options) checkImage(img *image.Image) error {
	switch {
	case !o.ReadWrite:
		return nil
	case img.Dir == "":
		return fmt.Errorf("image %s has layers, which are shared and never change: writing to the image needs a directory image", o.Image)
	}
	if err := unix.Access(img.Dir, unix.W_OK); err != nil {
		return fmt.Errorf("image %s can't be written to: %w", o.Image, err)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.State = cmp.Or(o.State, "/run/berth")
	o.Data = cmp.Or(o.Data, "/var/lib/berth")
	o.Network = cmp.Or(o.Network, "host")
	o.Stdin, o.Stdout, o.Stderr = cmp.Or(o.Stdin, os.Stdin), cmp.Or(o.Stdout, os.Stdout), cmp.Or(o.Stderr, os.Stderr)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Interactive = o.Interactive || o.Terminal && (o.Detach != nil || supervise.IsTerminal(o.Stdin))
	return o
}

// plan is the result of checking the options against the machine.
type plan struct {
	id, name string
	mounts   []specs.Mount
	init     string // the program of Settings.Init
	// gang and member are set for a rank, nil for a single task.
	gang   *gang
	member *tasks.Member
}

// planSingle is plan for a single task.
func (o Options) planSingle(h *host) (plan, error) {
	switch {
	case o.Network == "private" || o.Network == "rdma":
		return plan{}, fmt.Errorf("network %s is a gang's; a gang of one has it, too: berth run -n 1", o.Network)
	case o.Network != "host" && o.Network != "none":
		return plan{}, fmt.Errorf("network %q is not known%s: there are host, where what a task listens on is reached at the host's address, and none", o.Network, spell.Suggestion(o.Network, "host", "none"))
	}
	p, err := o.makePlan(h)
	if err != nil {
		return plan{}, err
	}
	return p, o.checkLifecycle()
}

func (o Options) makePlan(h *host) (plan, error) {
	id := tasks.NewID()
	p := plan{id: id, name: cmp.Or(o.Name, id)}
	if !tasks.ValidName(p.name) {
		return plan{}, fmt.Errorf("name %q: only letters, digits, \"_\", \".\" and \"-\" are allowed, at most 63, beginning with a letter or digit", o.Name)
	}
	if err := cmp.Or(o.Check(h.Host, h.privileges), o.checkStopSignal(), o.checkCIDFile()); err != nil {
		return plan{}, err
	}
	if o.Terminal && o.Interactive && o.Detach == nil && !supervise.IsTerminal(o.Stdin) {
		return plan{}, supervise.ErrNoTerminal
	}
	var err error
	if p.mounts, err = spec.PlanMounts(o.Volumes, o.Mounts, shared.InData(cmp.Or(o.Data, "/var/lib/berth"))); err != nil {
		return plan{}, err
	}
	if o.Init {
		if p.init, err = catatonit.Find(); err != nil {
			return plan{}, fmt.Errorf("--init: %w, or leave out --init", err)
		}
	}
	return p, nil
}
