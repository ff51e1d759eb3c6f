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
	"time"

	runcopts "github.com/containerd/containerd/api/types/runc/options"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// runtimeName is the shim that both versions of containerd have.
const runtimeName = "io.containerd.runc.v2"

// annotation asks berth-runtime for devices, and nameAnnotation tells it whom for.
const (
	annotation     = "berth.gpus"
	nameAnnotation = "berth/name"
)

// Waiting is told each time that the devices which were asked for are busy.
type Waiting func(error)

// Run runs a task, in the foreground to its end, and returns its exit code; detached, as
// soon as it runs, and with its id. Exit codes of errors are those of launcher.Run.
func (e *Engine) Run(ctx context.Context, r engine.Run, wait time.Duration, waiting Waiting) (id string, code int, err error) {
	s := supervise.TakeSignals()
	defer s.Stop()
	l := &launch{Engine: e, run: r}
	id, code, err = l.do(s.Context(within(ctx)), s, wait, waiting)
	if err != nil {
		return "", supervise.ExitCode(err), err
	}
	return id, code, nil
}

// launch is one task from its request to its end.
type launch struct {
	*Engine
	run   engine.Run
	draft *launcher.Draft
	asked request.Request
	image readyImage // without an Image for a directory
	root  root       // of a directory
	rec   tasks.Record

	container client.Container
	task      client.Task
	lock      *os.File
	// late: it was asked to end because its time was over.
	late bool
}

func (l *launch) do(ctx context.Context, s *supervise.Signals, wait time.Duration, waiting Waiting) (_ string, code int, err error) {
	if err := l.check(ctx); err != nil {
		return "", 0, err
	}
	if err := l.sweep(ctx); err != nil {
		return "", 0, err
	}
	if err := l.open(ctx); err != nil {
		return "", 0, err
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, l.undo(context.WithoutCancel(ctx)))
		}
		err = errors.Join(err, l.unlock())
	}()
	if err := l.make(ctx); err != nil {
		return "", 0, err
	}
	io, err := l.io()
	if err != nil {
		return "", 0, err
	}
	defer io.restore()
	if err := l.create(ctx, io, wait, waiting); err != nil {
		return "", 0, err
	}
	if err := l.draft.WriteCIDFile(); err != nil {
		return "", 0, err
	}
	if err := l.unlock(); err != nil {
		return "", 0, err
	}
	if l.run.Detach {
		err := plain(l.task.Start(ctx))
		keep = err == nil
		return l.rec.ID, 0, err
	}
	code, err = l.foreground(ctx, io, s)
	if err != nil {
		return "", 0, err
	}
	badly := l.starved(code)
	if badly == nil && l.late && code != 0 {
		badly = &supervise.TimedOut{Code: code, After: l.run.Options.Timeout}
	}
	if l.run.Options.Keep {
		keep = true
		err = errors.Join(l.Ended(ctx, l.rec.ID, code), l.task.IO().Close())
	}
	return l.rec.ID, code, errors.Join(err, badly)
}

// check finds out what can be wrong before anything is fetched or made.
func (l *launch) check(ctx context.Context) (err error) {
	o := l.run.Options
	switch {
	case l.run.Detach && o.Interactive && !o.Terminal:
		return errors.New("--detach --interactive: containerd has no standard input for a detached task without a terminal; add --tty, or leave out --interactive")
	case o.Timeout > 0 && o.Restart.Policy != "":
		return errors.New("--timeout and --restart: containerd starts a task again that was ended by its timeout; leave out one of them")
	case o.Runtime != "":
		return fmt.Errorf("--runtime %s: with containerd, the runtime is that of berth-runtime: set runtime in %s", o.Runtime, berth.ConfigPath)
	case o.Search.Platform != "" && o.ReadWrite:
		return errors.New("--rw: writing to the image needs a directory image")
	}
	if l.draft, err = launcher.NewDraft(o, l.run.Detach); err != nil {
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
	if err := node.Grantable(ctx, l.asked); err != nil {
		return fmt.Errorf("request %w", err)
	}
	return nil
}

// open finds the image.
func (l *launch) open(ctx context.Context) error {
	o := l.run.Options
	file, dir, err := parseFileReference(o.Image)
	switch {
	case err != nil:
		return err
	case dir != "":
		return l.openDirectory(dir)
	case o.ReadWrite:
		return fmt.Errorf("image %s is no directory, and its layers are shared and never change: writing to the image needs a directory image", o.Image)
	case file.path != "":
		l.image, err = l.importImage(ctx, o.Image, file, o.Search)
	default:
		l.image, err = l.findImage(ctx, o.Image, o.Search, o.Progress)
	}
	return err
}

func (l *launch) openDirectory(dir string) error {
	if l.run.Options.Restart.Policy != "" {
		return fmt.Errorf("--restart: containerd can start a task again whose image is in containerd; %s is a directory", l.run.Options.Image)
	}
	if img, err := image.Open("dir:" + dir); err != nil {
		return err
	} else if img.Dir == "" {
		return fmt.Errorf("image %s is no directory", dir)
	}
	l.root.dir = dir
	return nil
}

// make makes the task's directory, and its container.
func (l *launch) make(ctx context.Context) (err error) {
	self, err := l.store.Self()
	if err != nil {
		return err
	}
	boot, err := l.store.BootID()
	if err != nil {
		return err
	}
	id, o := l.draft.ID(), l.run.Options
	l.rec = tasks.Record{
		ID: id, Name: l.draft.Name(), Image: o.Image, Created: time.Now().UTC(), BootID: boot, Maker: self,
		User: os.Getuid(), Detached: l.run.Detach, Remove: !o.Keep, Terminal: o.Terminal, Interactive: l.typed(),
		Labels: l.image.config.TaskLabels(o.Labels), Annotations: o.Annotations, Request: l.run.Devices,
		Runtime: l.Runtime, Cgroup: l.draft.Cgroup(), CgroupMount: l.Config.Host.Cgroup,
		Restart: o.Restart, Timeout: tasks.Duration(o.Timeout), Grace: tasks.Duration(l.draft.StopTimeout()), Log: o.LogLimit,
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
		if err := l.store.Claim(o.Name, id); err != nil {
			return err
		}
	}
	if l.root.dir != "" {
		if l.root, err = directoryRoot(l.root.dir, l.store.Dir(id), o.ReadWrite); err != nil {
			return err
		}
	}
	l.container, err = l.c.NewContainer(ctx, id, l.options(id)...)
	if err != nil {
		return interrupted(ctx, err)
	}
	return l.store.WriteRecord(l.rec)
}

func (l *launch) stopSignal() (int, error) {
	sig, err := l.draft.StopSignal(l.image.config)
	return int(sig), err
}

func (l *launch) options(id string) []client.NewContainerOpts {
	all := []client.NewContainerOpts{client.WithRuntime(runtimeName, &runcopts.Options{BinaryName: l.Runtime})}
	if l.image.Image != nil {
		all = append(all, client.WithImage(l.image), client.WithSnapshotter(snapshotter), client.WithNewSnapshot(id, l.image))
	}
	return append(all, func(_ context.Context, _ *client.Client, c *containers.Container) error {
		c.Labels = l.labels()
		return nil
	}, l.specify)
}

// labels tell other tools what the container is, and containerd's restart monitor what
// it is to do. What people write may not speak with containerd.
func (l *launch) labels() map[string]string {
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

// watched are the labels with which containerd starts a task again. They come when it
// has begun: one that can't begin isn't tried for ever.
func (l *launch) watched() map[string]string {
	if l.rec.Restart.Policy == "" {
		return nil
	}
	return map[string]string{
		restartStatus: "running", restartPolicy: l.rec.Restart.String(), restartLog: l.logURI(),
	}
}

// specify writes the spec into the container, whose snapshot is there by then.
func (l *launch) specify(ctx context.Context, _ *client.Client, c *containers.Container) error {
	root := l.root
	if l.image.Image != nil {
		var err error
		if root, err = l.snapshotRoot(ctx, c.SnapshotKey); err != nil {
			return err
		}
	}
	programs, err := l.programs(ctx)
	if err != nil {
		return err
	}
	dir := l.store.Dir(c.ID)
	return root.viewRoot(filepath.Join(dir, "look"), func(f *os.File) error {
		spec, err := l.draft.Spec(dir, l.image.config, f, programs)
		if err != nil {
			return err
		}
		l.ask(spec)
		l.rec.Command, l.rec.UID, l.rec.GID = spec.Process.Args, spec.Process.User.UID, spec.Process.User.GID
		c.Spec, err = typeurl.MarshalAny(spec)
		return err
	})
}

// ask puts the request where berth-runtime finds it.
func (l *launch) ask(spec *specs.Spec) {
	if l.run.Devices == "" {
		return
	}
	all := map[string]string{annotation: l.run.Devices}
	maps.Copy(all, spec.Annotations)
	if name := l.draft.Name(); name != l.draft.ID() {
		all[nameAnnotation] = name
	}
	spec.Annotations = all
}

// programs are those that come with the devices.
func (l *launch) programs(ctx context.Context) (map[string]string, error) {
	if l.run.Devices == "" || !l.asked.GPUs() {
		return nil, nil
	}
	node, err := berth.Open(l.Config)
	if err != nil {
		return nil, err
	}
	return node.Programs(ctx, slices.Concat(l.image.config.Env, l.run.Options.Env))
}

// again is how often a task is tried to be made whose devices are busy.
const again = time.Second

// create makes the task, whose devices berth-runtime leases then.
func (l *launch) create(ctx context.Context, io *stdio, wait time.Duration, waiting Waiting) error {
	var opts []client.NewTaskOpts
	if l.root.mounts != nil {
		opts = append(opts, client.WithRootFS(l.root.mounts))
	}
	for start := time.Now(); ; {
		task, err := l.container.NewTask(ctx, io.creator, opts...)
		if err == nil {
			l.task = task
			return l.relabel(ctx, l.container, l.watched())
		}
		err = interrupted(ctx, created(err))
		if !errors.Is(err, match.ErrBusy) || wait == 0 {
			return err
		}
		if waited := time.Since(start); wait > 0 && waited > wait {
			return said{fmt.Sprintf("%v; waited %v", err, waited.Round(100*time.Millisecond)), errors.Join(err, engine.ErrWaited)}
		}
		waiting(err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(again):
		}
	}
}

// created makes of what containerd says the words that matter.
func created(err error) error {
	text := plain(err).Error()
	at := strings.Index(text, "berth: ")
	if at < 0 {
		return plain(err)
	}
	text = text[at+len("berth: "):]
	// The way out is the command's to say.
	text, advice, busy := strings.Cut(text, "; try again when they are free")
	if busy {
		return said{text, match.ErrBusy}
	}
	return said{text + advice, err}
}

// interrupted is why ctx has ended, if it has: all calls fail then.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// relabel adds labels to a container.
func (e *Engine) relabel(ctx context.Context, c client.Container, labels map[string]string) error {
	if len(labels) == 0 {
		return nil
	}
	_, err := c.SetLabels(ctx, labels)
	return plain(err)
}

// foreground starts the task and waits for its end.
func (l *launch) foreground(ctx context.Context, io *stdio, s *supervise.Signals) (int, error) {
	background := context.WithoutCancel(ctx)
	ended, err := l.task.Wait(background)
	if err != nil {
		return 0, plain(err)
	}
	if err := s.Hold(); err != nil {
		return 0, err
	}
	if err := l.task.Start(background); err != nil {
		return 0, created(err)
	}
	io.attach(background, l.task)
	p := supervised{l.task, ended, io, (*supervise.Process).SendAsInit}
	code, why, err := l.wait(background, p, s, supervise.TermsOf(l.rec, 0))
	if err != nil {
		return 0, fmt.Errorf("task %s: %w", l.rec.Name, err)
	}
	l.task.IO().Wait()
	l.late = why != ""
	return code, nil
}

// starved is an error if the task has ended badly, having run out of memory. Its cgroup is
// there until containerd removes the task.
func (l *launch) starved(code int) error {
	tree, err := cgroup.Detect(l.Config.Host.Cgroup)
	if code == 0 || err != nil || !tree.HasOOMKill(l.rec.Cgroup+"/container") {
		return nil
	}
	return &supervise.OutOfMemory{Code: code, Limit: l.run.Options.Memory}
}

// undo removes what was made.
func (l *launch) undo(ctx context.Context) error {
	if l.rec.ID == "" {
		return nil
	}
	if l.task != nil {
		if _, err := l.task.Delete(ctx, client.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove task %s: %w", l.rec.ID, plain(err))
		}
	}
	if l.container != nil {
		if err := l.container.Delete(ctx, client.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", l.rec.ID, plain(err))
		}
	}
	return l.forget(l.rec.ID)
}

func (l *launch) unlock() error {
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	return err
}

// forget removes what is kept of a task beside containerd, and its cgroup.
func (e *Engine) forget(id string) error {
	path := "/berth/" + id
	if r, err := e.store.Record(id); err == nil && r.Cgroup != "" {
		path = r.Cgroup
	}
	ctx := within(context.Background())
	gone := e.clear(ctx, id)
	// One whose container was never made is kept by its maker's lease for a day.
	if err := e.c.SnapshotService(snapshotter).Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		gone = errors.Join(gone, plain(err))
	}
	if tree, err := cgroup.Detect(e.Config.Host.Cgroup); err == nil {
		gone = errors.Join(gone, tree.RemoveAll(path))
	}
	if name, err := e.claimed(id); err == nil && name != "" {
		gone = errors.Join(gone, e.store.Unclaim(name, id))
	}
	return errors.Join(gone, e.store.Remove(id))
}

// claimed is the name of a task that has no record yet.
func (e *Engine) claimed(id string) (string, error) {
	names := filepath.Join(e.store.Data, "names")
	entries, err := os.ReadDir(names)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		if owner, err := os.Readlink(filepath.Join(names, entry.Name())); err == nil && owner == id {
			return entry.Name(), nil
		}
	}
	return "", nil
}
