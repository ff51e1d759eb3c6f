package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/catatonit"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// RunGang launches a gang and then executes the gang's monitor in this process. It returns only
// with an error, and with the exit code of that error as Run does. An error of a rank begins with
// the rank's name.
func RunGang(ctx context.Context, o GangOptions) (int, error) {
	o.Network = cmp.Or(o.Network, "private")
	o.Options = o.withDefaults()
	s := supervise.TakeSignals()
	defer func() { go s.Stop() }() // in the background: it waits for s.Ready
	ctx = s.Context(ctx)
	err := runGang(ctx, o, s)
	return supervise.ExitCode(err), err
}

// gang is a gang that is being launched, until the monitor takes over.
type gang struct {
	o     GangOptions
	task  *task // with the gang's own record and directory
	ranks []*rank
	// holder is the program that holds the namespaces.
	holder string
}

// rank is a rank of a gang that is being launched.
type rank struct {
	*task
	options Rank
	member  tasks.Member
	img     *image.Image
	layers  []string
	root    *os.File
	spec    *specs.Spec
}

func runGang(ctx context.Context, o GangOptions, s *supervise.Signals) (err error) {
	go warmUp()
	go growFileTable(len(o.Ranks))
	if o.Detach == nil || len(o.Ranks) == 0 {
		return errors.New("a gang is always detached, and has a rank at least")
	}
	if !slices.Contains(Networks(), o.Network) {
		return fmt.Errorf("network %q is not known%s: a gang's is private (its own, with a way out), rdma (private, with the NICs near its GPUs), none or host", o.Network, spell.Suggestion(o.Network, Networks()...))
	}
	g := &gang{o: o}
	forbidden, err := o.forbiddenCapabilities()
	if err != nil {
		return err
	}
	h, err := newHost(o.Options, forbidden...)
	if err != nil {
		return err
	}
	if o.Timeout < 0 {
		return errors.New("a timeout can't be negative")
	}
	plan, err := g.o.makePlan(h)
	if err == nil {
		err = o.checkName(plan.name)
	}
	if err != nil {
		return err
	}
	if g.holder, err = catatonit.Find(); err != nil {
		return fmt.Errorf("%w; a gang's namespaces are held by it", err)
	}
	programs := o.startProgramLookup(ctx, nil)
	if err := g.openImages(ctx, plan); err != nil {
		return err
	}
	defer g.closeImages()
	if err := control.Sweep(ctx, o.taskStore(), h.Cgroups, o.Monitor, o.Retention); err != nil {
		o.Log.Warn("sweep leftovers", "error", err)
	}
	if err := g.unpackLayers(ctx, programs); err != nil {
		return err
	}
	if _, err := programs(); err != nil { // no rank checks the request of the whole gang
		return err
	}
	if g.task, err = newTask(g.o.Options, h, plan); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.cleanUp(context.WithoutCancel(ctx))) }()
	if err := g.forEachRank(func(_ int, r *rank) error { return g.makeRank(r, h, programs) }); err != nil {
		return err
	}
	err = onThread(func() error { return g.launch(ctx, s) })
	g.task.setFailedExit(err)
	return err
}

// growFileTable grows this process's table of open files to the size that a monitor of so many
// ranks needs. The monitor is the same process and keeps the table. Growing the table of a process
// with several threads, the kernel waits for all processors (synchronize_rcu), and every open of a
// file waits with it: twice 10 ms for eight ranks. Errors are ignored: the table then grows later.
func growFileTable(ranks int) {
	const each, others = 16, 32
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	if last, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, others+each*ranks); err == nil {
		_ = unix.Close(last) // a handle
	}
	_ = unix.Close(root)
}

// wrapError adds the rank's name to an error.
func (r *rank) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", r.member.Name(), err)
}

// forEachRank calls do for all ranks concurrently and waits for all calls. It returns the error of
// the lowest rank that failed.
func (g *gang) forEachRank(do func(at int, r *rank) error) error {
	errs := make([]error, len(g.ranks))
	var all sync.WaitGroup
	for i, r := range g.ranks {
		all.Go(func() { errs[i] = r.wrapError(do(i, r)) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// openImages plans the ranks and opens their images. Ranks with the same reference share an image.
func (g *gang) openImages(ctx context.Context, p plan) error {
	images := map[string]*image.Image{}
	for i, of := range g.o.Ranks {
		r := &rank{options: of, member: tasks.Member{Gang: p.id, Role: of.Role, Index: of.Index, Rank: i}}
		g.ranks = append(g.ranks, r)
		o := &r.options.Options
		o.Name = p.name + "." + r.member.Name()
		o.Detach, o.Keep, o.Devices, o.Request, o.Fetch = g.o.Detach, g.o.Keep, g.o.Devices, g.o.Request, g.o.Fetch
		o.State, o.Data, o.Cgroup, o.Monitor = g.o.State, g.o.Data, g.o.Cgroup, g.o.Monitor
		o.Parent, o.Network = filepath.Join(cmp.Or(g.o.Parent, tasks.CgroupParent), p.id), g.o.Network
		*o = o.withDefaults()
		if o.Terminal || o.Interactive {
			return errors.New("a gang has neither a terminal nor standard input; berth exec -it opens a shell in one of its ranks")
		}
		if r.img = images[o.Image]; r.img == nil {
			img, err := o.openImage(ctx)
			if err != nil {
				return err
			}
			r.img, images[o.Image] = img, img
		}
		if err := o.checkImage(r.img); err != nil {
			return err
		}
	}
	return nil
}

func (g *gang) closeImages() {
	var closed []*image.Image
	for _, r := range g.ranks {
		if !slices.Contains(closed, r.img) {
			closed = append(closed, r.img)
			r.img.Close()
		}
	}
}

func (g *gang) unpackLayers(ctx context.Context, programs func() (map[string]string, error)) error {
	done := map[*image.Image][]string{}
	for _, r := range g.ranks {
		layers, ok := done[r.img]
		if !ok {
			var err error
			if layers, err = g.o.unpackLayers(ctx, r.img, programs); err != nil {
				return err
			}
			done[r.img] = layers
		}
		r.layers = layers
	}
	return nil
}

// makeRank creates a rank's directory.
func (g *gang) makeRank(r *rank, h *host, programs func() (map[string]string, error)) error {
	p, err := r.options.makePlan(h)
	if err != nil {
		return err
	}
	if id := g.o.taskStore().IDByName(p.name); id != "" {
		return fmt.Errorf("task %s is called %s already: %w", id, p.name, tasks.ErrNameTaken)
	}
	p.gang, p.member = g, &r.member
	if r.task, err = newTask(r.options.Options, h, p); err != nil {
		return err
	}
	r.programs = programs
	if r.options.Part < 0 {
		r.programs = func() (map[string]string, error) { return nil, nil }
	}
	if g.o.Place == nil {
		r.waitPrepared = inBackground(r.prepareRuntime)
	}
	return r.img.NoteLayers(r.paths.Dir, r.layers)
}

// cleanUp removes everything that was created for a gang whose launch has failed.
func (g *gang) cleanUp(ctx context.Context) error {
	var err error
	for _, r := range g.ranks {
		if r.root != nil {
			r.root.Close() // an O_PATH descriptor
		}
		if r.task != nil {
			err = errors.Join(err, r.cleanUp(ctx))
		}
	}
	return errors.Join(err, g.task.cleanUp(ctx))
}

// launch prepares the ranks, takes the lease and executes the monitor. All roots are mounted in
// one mount namespace, which the monitor keeps.
func (g *gang) launch(ctx context.Context, s *supervise.Signals) error {
	if err := g.task.writeCIDFile(); err != nil {
		return err
	}
	if err := g.makeSharedFiles(); err != nil {
		return err
	}
	for _, r := range g.ranks {
		var err error
		if r.root, err = r.mountRoot(r.layers); err != nil {
			return r.wrapError(err)
		}
	}
	if err := g.forEachRank(func(_ int, r *rank) error { return r.describeRank() }); err != nil {
		return err
	}
	if err := g.writeRecord(); err != nil {
		return err
	}
	<-s.Ready // from here on a signal must not end this process by default: it holds a lease
	parts, err := g.acquireLease(ctx)
	if err != nil {
		return err
	}
	if err := g.enterParent(ctx); err != nil {
		return err
	}
	if err := g.task.rewriteRecordWithLease(); err != nil {
		return err
	}
	near, err := g.nearbyCPUs(ctx, parts)
	if err != nil {
		return err
	}
	if err := g.forEachRank(func(i int, r *rank) error { return g.prepareRank(ctx, r, parts, near, i) }); err != nil {
		return err
	}
	if err := g.createOuterCgroup(ctx); err != nil {
		return err
	}
	if err := g.forEachRank(func(_ int, r *rank) error { return r.writeFiles(ctx) }); err != nil {
		return err
	}
	var locks []*os.File
	for _, r := range g.ranks {
		locks = append(locks, r.lock)
	}
	more := []inherited{{"--locks", locks}}
	if g.o.ViewerPipe != nil {
		more = append(more, inherited{"--viewer-pipe", []*os.File{g.o.ViewerPipe}})
	}
	if g.o.Ports != nil {
		more = append(more, inherited{"--ports", []*os.File{g.o.Ports.File}})
	}
	return g.task.becomeMonitor(ctx, s, more...)
}

// makeSharedFiles creates what the ranks share: /dev/shm, and the files of spec.EtcFiles.
func (g *gang) makeSharedFiles() error {
	if err := overlay.UnshareMounts(); err != nil {
		return err
	}
	shm := g.task.paths.In("shm")
	if err := os.Mkdir(shm, 0o700); err != nil {
		return fmt.Errorf("make the gang's directory: %w", err)
	}
	if err := overlay.MountShm(shm, g.o.Shm); err != nil {
		return err
	}
	_, err := g.o.WriteEtcFiles(g.task.paths.In("files"), g.task.plan.name)
	return err
}

// shareWithRank sets the namespaces and files that a rank shares with the others.
func (g *gang) shareWithRank(b *spec.Container) {
	dir := g.task.paths.Dir
	b.Join = map[specs.LinuxNamespaceType]string{}
	for kind, name := range map[specs.LinuxNamespaceType]string{
		specs.PIDNamespace: "pid", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts", specs.NetworkNamespace: "net",
	} {
		b.Join[kind] = filepath.Join(dir, "ns", name)
	}
	b.Shm = filepath.Join(dir, "shm")
	b.Hostname = g.o.EffectiveHostname(g.task.plan.name)
	b.Files = map[string]string{}
	for _, name := range spec.EtcFiles() {
		b.Files["/etc/"+name] = filepath.Join(dir, "files", name)
	}
}

func (r *rank) describeRank() error {
	b, err := r.describeContainer(r.img, r.root)
	if err != nil {
		return err
	}
	r.spec = spec.New(b)
	return r.buildRecord(r.img, r.layers, r.spec)
}

// writeRecord writes the gang's record. It is called before any container or lease exists.
func (g *gang) writeRecord() error {
	first := g.ranks[0]
	if err := g.task.buildRecord(first.img, nil, first.spec); err != nil {
		return err
	}
	whole := &tasks.Gang{Network: g.o.Network, Holder: g.holder, Shm: g.o.Shm, Viewer: g.o.Viewer, Stores: g.o.Stores, Server: g.o.Server}
	if p := g.o.Ports; p != nil {
		whole.Ports = tasks.GangPorts{First: p.First, Count: p.Count}
	}
	var images []string
	for _, r := range g.ranks {
		whole.Ranks = append(whole.Ranks, r.paths.ID)
		whole.Names = append(whole.Names, r.member.Name())
		if !slices.Contains(images, r.options.Image) {
			images = append(images, r.options.Image)
		}
	}
	g.task.rec.Image = strings.Join(images, ", ")
	g.task.rec.Gang = whole
	return g.o.taskStore().WriteRecord(g.task.rec)
}

// acquireLease takes the gang's lease and returns one lease for each part of the request, with the
// devices of that part.
func (g *gang) acquireLease(ctx context.Context) ([]ledger.Lease, error) {
	t := g.task
	if t.o.Devices == nil {
		return nil, nil
	}
	queued := t.announceQueued
	if g.o.ViewerPipe != nil { // the gang ends with the berth run that is attached to it
		queued = func() {}
	}
	if t.o.Place == nil { // the device guard opens the devices for a cgroup that exists
		if err := t.h.Cgroups.Create(t.paths.Cgroup()); err != nil {
			return nil, err
		}
	}
	lease, err := t.o.Devices.Acquire(ctx, t.leaseOwner(g.ranks[0].spec), t.o.Request, queued)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	t.lease = &lease
	devices, err := t.o.Devices.Divide(ctx, lease)
	if err != nil {
		return nil, err
	}
	sortByRank(g.ranks, devices)
	var parts []ledger.Lease
	for _, d := range devices {
		part := lease
		part.Devices = d
		parts = append(parts, part)
	}
	return parts, nil
}

// nearbyCPUs returns for each rank the CPUs near its devices in list format, "" without devices.
func (g *gang) nearbyCPUs(ctx context.Context, parts []ledger.Lease) ([]string, error) {
	lists := make([]string, len(g.ranks))
	for i, r := range g.ranks {
		if lists[i] = r.o.CPUs; lists[i] != "" || r.options.Part < 0 || r.options.Part >= len(parts) {
			continue
		}
		var err error
		if lists[i], err = g.o.Devices.CPUs(ctx, parts[r.options.Part]); err != nil {
			return nil, r.wrapError(err)
		}
	}
	return lists, nil
}

// createOuterCgroup sets device rules on the gang's cgroup if its ranks could change their own:
// they can reach the process that holds the namespaces, and it has no outer cgroup.
func (g *gang) createOuterCgroup(ctx context.Context) error {
	var rules []specs.LinuxDeviceCgroup
	for _, r := range g.ranks {
		rules = append(rules, r.spec.Linux.Resources.Devices...)
	}
	g.task.waitPrepared = inBackground(func() error { return nil })
	return g.task.createOuterCgroup(ctx, &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: rules}}})
}

// prepareRank adds a rank's devices, variables and CPUs to its spec.
func (g *gang) prepareRank(ctx context.Context, r *rank, parts []ledger.Lease, near []string, at int) error {
	cpus := cpuShare(near, at, runtime.NumCPU())
	var gpus []int
	if r.options.Part >= 0 && r.options.Part < len(parts) {
		mine := parts[r.options.Part]
		seen := mine
		seen.Devices = nil
		for i, p := range parts {
			if slices.Contains(r.options.Sees, i) {
				seen.Devices = append(seen.Devices, p.Devices...)
			}
		}
		prepared, err := g.o.Devices.Prepare(ctx, seen, r.spec, r.root)
		if err != nil {
			return err
		}
		r.rec.SetRemoved(prepared.Removed)
		r.addLeaseToRecord(mine)
		for _, d := range seen.Devices {
			r.rec.Member.Sees = append(r.rec.Member.Sees, d.UUID)
		}
		gpus = ownGPUs(seen.Devices, mine.Devices)
	}
	g.addWorld(r, gpus, cpus)
	return r.setCPUs(near[at], r.spec)
}

// writeFiles writes the bundle, the record and the FIFOs from which the monitor creates a rank.
func (r *rank) writeFiles(ctx context.Context) error {
	// A sysctl of an interface can only be set once the interface exists, and hooks may move an
	// interface of the host into the gang's network.
	r.rec.Member.NetworkFirst = r.spec.Hooks != nil || len(r.spec.Linux.Sysctl) > 0
	if err := r.createOuterCgroup(ctx, r.spec); err != nil {
		return err
	}
	if err := r.writeBundle(r.spec); err != nil {
		return err
	}
	if err := r.o.taskStore().WriteRecord(r.rec); err != nil {
		return err
	}
	return r.makePipes()
}
