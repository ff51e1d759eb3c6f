package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	runcopts "github.com/containerd/containerd/api/types/runc/options"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// runtimeName is the shim of containerd 1 and 2.
const runtimeName = "io.containerd.runc.v2"

// Annotations for berth-runtime: the request, and the task's name.
const (
	requestAnnotation = "berth.gpus"
	nameAnnotation    = "berth/name"
)

// Waiting is called with the error each time that the requested devices are busy.
type Waiting func(error)

// Run runs a task. In the foreground it returns the exit code when the task has ended; detached it
// returns the id when the task runs. wait is how long to wait for busy devices, less than zero for
// ever. Exit codes of errors are those of launcher.Run.
func (e *Engine) Run(ctx context.Context, r engine.Run, wait time.Duration, waiting Waiting) (id string, code int, err error) {
	s := supervise.TakeSignals()
	defer s.Stop()
	l := &launch{Engine: e, run: r}
	id, code, err = l.runLaunch(s.Context(withNamespace(ctx)), s, wait, waiting)
	if err != nil {
		return "", supervise.ExitCode(err), err
	}
	return id, code, nil
}

// launch is one call of Run.
type launch struct {
	*Engine
	run     engine.Run
	planned *launcher.PlannedTask
	asked   request.Request
	image   readyImage // zero for a directory image
	root    root       // zero except for a directory image
	rec     tasks.Record

	container client.Container
	task      client.Task
	shim      *supervise.Process // nil for a detached task
	lock      *os.File
	// abandoned means that a signal has ended the task's start.
	abandoned bool
	// timedOut means that the task was stopped by its timeout.
	timedOut bool
}

func (l *launch) runLaunch(ctx context.Context, s *supervise.Signals, wait time.Duration, waiting Waiting) (_ string, code int, err error) {
	if err := l.checkOptions(ctx); err != nil {
		return "", 0, causeOr(ctx, err)
	}
	if err := l.removeLeftovers(ctx); err != nil {
		return "", 0, causeOr(ctx, err)
	}
	if err := l.findRoot(ctx); err != nil {
		return "", 0, causeOr(ctx, err)
	}
	keep, stopEnding := false, func() {}
	defer func() {
		if !keep {
			err = errors.Join(err, l.undo(context.WithoutCancel(ctx), undoTimeout))
		}
		stopEnding()
		l.shim.Close()
		err = errors.Join(err, l.unlock())
	}()
	if err := l.createContainer(ctx); err != nil {
		return "", 0, causeOr(ctx, err)
	}
	io, err := l.openIO()
	if err != nil {
		return "", 0, err
	}
	defer io.restoreTerminal()
	if err := l.createTask(ctx, io, wait, waiting); err != nil {
		return "", 0, causeOr(ctx, err)
	}
	if err := l.planned.WriteCIDFile(); err != nil {
		return "", 0, err
	}
	if err := l.unlock(); err != nil {
		return "", 0, err
	}
	if l.run.Detach {
		err := causeOr(ctx, simplifyError(l.task.Start(ctx)))
		keep = err == nil
		return l.rec.ID, 0, err
	}
	code, err = l.runForeground(ctx, io, s)
	if err != nil {
		return "", 0, err
	}
	if io.incomplete {
		stopEnding = l.endShimLater()
	}
	badly := l.outOfMemoryError(code)
	if badly == nil && l.timedOut && code != 0 {
		badly = &supervise.TimedOut{Code: code, After: l.run.Options.Timeout}
	}
	if l.run.Options.Keep && !l.abandoned {
		keep = true
		err = l.HandleTaskEnd(ctx, l.rec.ID, code)
		if err != nil && l.awaitShimCleanup(ctx) {
			err = nil
		}
		err = errors.Join(err, l.task.IO().Close())
	}
	return l.rec.ID, code, errors.Join(err, badly)
}

// checkOptions returns errors of the options and of the request before anything is fetched or created.
func (l *launch) checkOptions(ctx context.Context) (err error) {
	o := l.run.Options
	switch {
	case l.run.Detach && o.Interactive && !o.Terminal:
		return errors.New("--detach --interactive: containerd has no standard input for a detached task without a terminal; add --tty, or leave out --interactive")
	case o.Timeout > 0 && o.Restart.Policy != "":
		return errors.New("--timeout and --restart: containerd would restart a task that its timeout has ended; leave out one of them")
	case o.Runtime != "":
		return fmt.Errorf("--runtime %s: with containerd, the runtime is that of berth-runtime: set runtime in %s", o.Runtime, berth.ConfigPath)
	case o.Search.Platform != "" && o.ReadWrite:
		return errors.New("--rw: writing to the image needs a directory image")
	}
	if l.planned, err = launcher.PlanTask(o, l.run.Detach); err != nil {
		return err
	}
	if l.run.Devices == "" {
		return nil
	}
	if l.asked, err = request.Parse(l.run.Devices); err != nil {
		return err
	}
	node, err := berth.Open(l.Config)
	if err != nil {
		return err
	}
	if err := node.CheckGrantable(ctx, l.asked); err != nil {
		return fmt.Errorf("request %w", err)
	}
	return nil
}

// findRoot finds the image.
func (l *launch) findRoot(ctx context.Context) error {
	o := l.run.Options
	ref, err := image.ParseReference(o.Image)
	switch {
	case err != nil:
		return err
	case ref.Kind == image.Directory:
		return l.openDirectory()
	case o.ReadWrite:
		return fmt.Errorf("image %s is no directory, and its layers are shared and never change: writing to the image needs a directory image", o.Image)
	case ref.Kind == image.Registry:
		l.image, err = l.findImage(ctx, ref.Path, o.Search, o.Progress)
	default:
		l.image, err = l.importImage(ctx, o.Image, ref, o.Search)
	}
	return err
}

func (l *launch) openDirectory() error {
	o := l.run.Options
	if o.Restart.Policy != "" {
		return fmt.Errorf("--restart: containerd restarts only tasks whose image is in containerd, and %s is a directory", o.Image)
	}
	img, err := image.Open(o.Image)
	if err != nil {
		return err
	}
	l.root.dir = img.Dir
	return nil
}

// createContainer creates the task's directory and its container.
func (l *launch) createContainer(ctx context.Context) (err error) {
	self, err := l.store.Self()
	if err != nil {
		return err
	}
	boot, err := l.store.BootID()
	if err != nil {
		return err
	}
	id, o := l.planned.ID(), l.run.Options
	l.rec = tasks.Record{
		ID: id, Name: l.planned.Name(), Image: o.Image, Created: time.Now().UTC(), BootID: boot, Maker: self,
		User: os.Getuid(), Detached: l.run.Detach, Remove: !o.Keep, Terminal: o.Terminal, Interactive: l.wantsInput(),
		Labels: l.image.config.TaskLabels(o.Labels), Annotations: o.Annotations, Request: l.run.Devices,
		Runtime: l.Runtime, Cgroup: l.planned.Cgroup(), CgroupMount: l.Config.Host.Cgroup,
		Restart: o.Restart, Timeout: tasks.Duration(o.Timeout), Grace: tasks.Duration(l.planned.StopTimeout()), Log: o.LogLimit,
	}
	if l.image.Image != nil {
		l.rec.Digest = l.image.Target().Digest.String()
	}
	if l.rec.StopSignal, err = l.stopSignal(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.store.Dir(id), 0o700); err != nil {
		return fmt.Errorf("make task directory: %w", err)
	}
	if l.lock, err = l.store.Lock(id); err != nil {
		return err
	}
	if o.Name != "" {
		if err := l.store.ClaimName(o.Name, id); err != nil {
			return err
		}
	}
	if l.root.dir != "" {
		if l.root, err = directoryRoot(l.root.dir, l.store.Dir(id), o.ReadWrite); err != nil {
			return err
		}
	}
	create, cancel := extendContext(ctx)
	defer cancel()
	l.container, err = l.c.NewContainer(create, id, l.containerOptions(id)...)
	if err != nil {
		return err
	}
	return l.store.WriteRecord(l.rec)
}

func (l *launch) stopSignal() (int, error) {
	sig, err := l.planned.StopSignal(l.image.config)
	return int(sig), err
}

func (l *launch) containerOptions(id string) []client.NewContainerOpts {
	all := []client.NewContainerOpts{client.WithRuntime(runtimeName, &runcopts.Options{BinaryName: l.Runtime})}
	if l.image.Image != nil {
		all = append(all, client.WithImage(l.image), client.WithSnapshotter(snapshotter), client.WithNewSnapshot(id, l.image))
	}
	return append(all, func(_ context.Context, _ *client.Client, c *containers.Container) error {
		c.Labels = l.containerLabels()
		return nil
	}, l.setSpec)
}

// containerLabels returns the container's labels for other tools. Labels of users must not begin with
// containerd.io/ or berth., which containerd and berth interpret.
func (l *launch) containerLabels() map[string]string {
	labels := map[string]string{}
	for name, value := range l.run.Options.Labels {
		if !strings.HasPrefix(name, "containerd.io/") && !strings.HasPrefix(name, "berth.") {
			labels[name] = value
		}
	}
	labels[labelName], labels[labelImage] = l.rec.Name, l.rec.Image
	if l.rec.Request != "" {
		labels[labelRequest] = l.rec.Request
	}
	return labels
}

// restartLabels are the labels for containerd's restart monitor. They are set once the task was
// created, so that a task that can't be created isn't retried for ever.
func (l *launch) restartLabels() map[string]string {
	if l.rec.Restart.Policy == "" {
		return nil
	}
	return map[string]string{
		restartStatus: "running", restartPolicy: l.rec.Restart.String(), restartLog: l.logURI(),
	}
}

// setSpec sets the container's spec. The snapshot must exist.
func (l *launch) setSpec(ctx context.Context, _ *client.Client, c *containers.Container) error {
	root := l.root
	if l.image.Image != nil {
		var err error
		if root, err = l.snapshotRoot(ctx, c.SnapshotKey); err != nil {
			return err
		}
	}
	programs, err := l.listPrograms(ctx)
	if err != nil {
		return err
	}
	dir := l.store.Dir(c.ID)
	return root.viewRoot(filepath.Join(dir, "look"), func(f *os.File) error {
		spec, err := l.planned.Spec(dir, l.image.config, f, programs)
		if err != nil {
			return err
		}
		l.annotateRequest(spec)
		l.rec.Command, l.rec.UID, l.rec.GID = spec.Process.Args, spec.Process.User.UID, spec.Process.User.GID
		c.Spec, err = typeurl.MarshalAny(spec)
		return err
	})
}

// annotateRequest sets the annotations that berth-runtime reads.
func (l *launch) annotateRequest(spec *specs.Spec) {
	if l.run.Devices == "" {
		return
	}
	all := map[string]string{requestAnnotation: l.run.Devices}
	maps.Copy(all, spec.Annotations)
	if name := l.planned.Name(); name != l.planned.ID() {
		all[nameAnnotation] = name
	}
	spec.Annotations = all
}

// listPrograms returns the programs that come with the devices, as launcher.DeviceSource.Programs.
func (l *launch) listPrograms(ctx context.Context) (map[string]string, error) {
	if l.run.Devices == "" || !l.asked.GPUs() {
		return nil, nil
	}
	node, err := berth.Open(l.Config)
	if err != nil {
		return nil, err
	}
	return node.Programs(ctx, slices.Concat(l.image.config.Env, l.run.Options.Env))
}

// busyRetryInterval is how often the creation is retried while the devices are busy.
const busyRetryInterval = time.Second

// createTask creates containerd's task. berth-runtime takes the lease meanwhile. While the devices are
// busy, the creation is retried for up to wait.
func (l *launch) createTask(ctx context.Context, io *stdio, wait time.Duration, waiting Waiting) error {
	var opts []client.NewTaskOpts
	if l.root.mounts != nil {
		opts = append(opts, client.WithRootFS(l.root.mounts))
	}
	for start := time.Now(); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		create, cancel := extendContext(ctx)
		task, err := l.container.NewTask(create, io.creator, opts...)
		cancel()
		if err == nil {
			l.task = task
			return l.setLabels(ctx, l.container, l.restartLabels())
		}
		err = explainCreateError(err)
		if ctx.Err() != nil || !errors.Is(err, match.ErrBusy) || wait == 0 {
			return err
		}
		if waited := time.Since(start); wait > 0 && waited > wait {
			return rewordedError{fmt.Sprintf("%v; waited %v", err, waited.Round(100*time.Millisecond)), errors.Join(err, engine.ErrWaited)}
		}
		waiting(err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(busyRetryInterval):
		}
	}
}

// createGrace is how long a creation goes on after a signal. It takes less unless something hangs.
const createGrace = 3 * time.Second

// extendContext returns a context that ends createGrace after ctx, for requests that create something: a
// cancelled request goes on in containerd, in the shim and in the runtime, and creates after undo has removed.
func extendContext(ctx context.Context) (context.Context, context.CancelFunc) {
	extended, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-extended.Done():
		case <-time.After(createGrace):
			cancel()
		}
	})
	return extended, func() { stop(); cancel() }
}

// explainCreateError returns berth-runtime's message from an error of containerd, or match.ErrBusy with
// that message if the devices are busy.
func explainCreateError(err error) error {
	text := simplifyError(err).Error()
	at := strings.Index(text, "berth: ")
	if at < 0 {
		return simplifyError(err)
	}
	text = text[at+len("berth: "):]
	// The command adds its own advice.
	text, advice, busy := strings.Cut(text, "; try again when they are free")
	if busy {
		return rewordedError{text, match.ErrBusy}
	}
	return rewordedError{text + advice, err}
}

// causeOr returns the cause of ctx if it has ended, and err otherwise.
func causeOr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// setLabels adds labels to a container.
func (e *Engine) setLabels(ctx context.Context, c client.Container, labels map[string]string) error {
	if len(labels) == 0 {
		return nil
	}
	_, err := c.SetLabels(ctx, labels)
	return simplifyError(err)
}

// runForeground starts the task and waits for its end.
func (l *launch) runForeground(ctx context.Context, io *stdio, s *supervise.Signals) (int, error) {
	if err := s.Hold(); err != nil {
		return 0, err
	}
	l.shim = l.openShim(int(l.task.Pid()))
	p := supervised{
		Process: l.task, io: io, startError: explainCreateError,
		send: func(p *supervise.Process, sig syscall.Signal) bool {
			_ = p.SendAsInit(sig) // it may have ended
			return false
		},
	}
	code, why, err := l.superviseProcess(context.WithoutCancel(ctx), p, s, supervise.TermsOf(l.rec, 0))
	if err != nil {
		return 0, fmt.Errorf("task %s: %w", l.rec.Name, err)
	}
	l.timedOut, l.abandoned = why == supervise.TimeoutReason(time.Duration(l.rec.Timeout)), why == startAbandoned
	return code, nil
}

// outOfMemoryError returns an error if the task failed and the kernel has killed one of its processes
// for lack of memory. The cgroup must still exist.
func (l *launch) outOfMemoryError(code int) error {
	tree, err := cgroup.Detect(l.Config.Host.Cgroup)
	if code == 0 || err != nil || !tree.HasOOMKill(l.rec.Cgroup+"/container") {
		return nil
	}
	return &supervise.OutOfMemory{Code: code, Limit: l.run.Options.Memory}
}

// openShim opens the shim of the container's first process. It returns nil if the process was killed meanwhile.
func (l *launch) openShim(init int) *supervise.Process {
	pid, err := process.Parent(l.procPath(), init)
	if err != nil {
		return nil
	}
	shim, err := supervise.OpenProcess(l.procPath(), pid)
	if err != nil {
		return nil
	}
	// Another process may have the pid by now. A shim's working directory is named after the container.
	if parent, bundle, err := l.findShim(init); err != nil || parent != pid || filepath.Base(bundle) != l.rec.ID {
		shim.Close()
		return nil
	}
	return shim
}

// endShimLater ends the shim of a task that has ended, unless stop is called first, when the task was removed.
// The shim would wait up to ten seconds for the end of an output that a process outside of the container may
// keep open. containerd removes a task whose shim has ended.
func (l *launch) endShimLater() (stop func()) {
	removed, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for l.shim != nil {
			select {
			case <-removed:
				return
			case <-time.After(deleteTimeout):
			}
			// The end of a task that is kept is recorded first, because containerd forgets it.
			if x, err := l.store.Exit(l.rec.ID); !l.run.Options.Keep || err == nil && x != nil {
				_ = l.shim.Send(unix.SIGKILL) // it may have ended
				return
			}
		}
	}()
	return func() { close(removed); <-ended }
}

// awaitShimCleanup waits until containerd has removed a task whose shim has ended. It returns false if the shim
// lives, or if containerd still has the task.
func (l *launch) awaitShimCleanup(ctx context.Context) bool {
	if l.shim == nil {
		return false
	}
	// A shim that is being killed closes its sockets a moment before it has ended.
	for last := time.Now().Add(time.Second); !l.shim.HasEnded(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(last) {
			return false
		}
	}
	for last := time.Now().Add(endTimeout); time.Now().Before(last); time.Sleep(5 * time.Millisecond) {
		if p, err := l.getProcess(ctx, l.rec.ID); err == nil && p == nil {
			return true
		}
	}
	return false
}

// undoTimeout is how long undo may take. containerd removes a container within seconds unless its shim or its runtime
// hangs.
const undoTimeout = 30 * time.Second

// undo removes what this launch has created. It gives up after limit. The error then says what may be left, and
// how it is removed.
func (l *launch) undo(ctx context.Context, limit time.Duration) error {
	if l.rec.ID == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := l.removeCreated(ctx)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("containerd hasn't removed task %s after %v: its container, its files and its lease may be left; berth --engine containerd rm -f %s removes them: %w",
			l.rec.Name, limit, l.rec.ID, err)
	}
	return err
}

// removeCreated removes the task, the container and the files that this launch has created.
func (l *launch) removeCreated(ctx context.Context) error {
	if l.task != nil {
		if _, err := l.task.Delete(ctx, client.WithProcessKill); err != nil && !errdefs.IsNotFound(err) && !l.awaitShimCleanup(ctx) {
			return fmt.Errorf("remove task %s: %w", l.rec.ID, simplifyError(err))
		}
	}
	if l.container != nil {
		if err := l.container.Delete(ctx, client.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", l.rec.ID, simplifyError(err))
		}
	}
	return l.removeTaskFiles(ctx, l.rec.ID)
}

func (l *launch) unlock() error {
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	return err
}

// removeTaskFiles removes everything of a task outside containerd's container: a leftover container of
// the runtime, the snapshot, the cgroup, the name and the directory.
func (e *Engine) removeTaskFiles(ctx context.Context, id string) error {
	path := "/berth/" + id
	if r, err := e.store.Record(id); err == nil && r.Cgroup != "" {
		path = r.Cgroup
	}
	ctx = withNamespace(ctx)
	gone := e.runtime().Delete(ctx, id)
	// A snapshot whose container was never created is protected by a lease of its creator for a day.
	if err := e.c.SnapshotService(snapshotter).Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		gone = errors.Join(gone, simplifyError(err))
	}
	if tree, err := cgroup.Detect(e.Config.Host.Cgroup); err == nil {
		gone = errors.Join(gone, tree.RemoveAll(path))
	}
	return errors.Join(gone, e.store.Remove(id))
}
