package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Node is this machine as berth acts on it: what it has, and who holds what. It
// is safe for use by several goroutines, and any number of processes may have one.
type Node struct {
	config  Config
	ledger  *ledger.Ledger
	cgroups cgroup.Hierarchy
	guard   guard.Guard

	reading sync.Mutex
	read    *snapshot.Snapshot // nil until the snapshot is needed
	readAt  time.Time

	loading   sync.Mutex
	loaded    driver.Dir // the directory of the snapshot, as of loadedAt
	loadedFor gpu.Capabilities
	loadedAt  time.Time

	viewing   sync.Mutex
	viewed    edits.Edits // what binds the views of viewedFor, as of viewedAt
	viewedFor string
	viewedAt  time.Time
}

// fresh is for how long what was read is taken to fit the machine, the snapshot, the
// directory of driver files and the views of devices: for the few milliseconds in which a
// container or the ranks of a gang start, and not for a wait in line.
const fresh = 100 * time.Millisecond

// Open returns the machine that the configuration describes. It reads nothing of
// it yet: what doesn't need the inventory works without a driver.
func Open(c Config) (*Node, error) {
	tree, err := cgroup.Detect(c.Host.Cgroup)
	if err != nil {
		return nil, err
	}
	l := openLedger(c)
	g := guard.Guard{
		Host: c.GPUHost(), Cgroups: tree, Ledger: l, Disabled: !c.Policy.Guarded(),
		Exemptions: guard.Exemptions{Namespaces: c.Policy.ExemptNamespaces, KeyFile: c.Policy.ExemptKey},
	}
	return &Node{config: c, ledger: l, cgroups: tree, guard: g}, nil
}

// Guard keeps containers without a lease away from this machine's accelerators.
func (n *Node) Guard() guard.Guard { return n.guard }

func openLedger(c Config) *ledger.Ledger {
	return ledger.Open(ledger.Options{Dir: c.State, Events: c.Data, Proc: c.Host.Proc, Cgroup: c.Host.Cgroup})
}

// snapshot reads the inventory snapshot, unless it just did. If there is none, or the machine has
// changed since it was taken, it has the berth command take a new one, which can
// last as long as the driver's library needs.
func (n *Node) snapshot(ctx context.Context) (snapshot.Snapshot, error) {
	n.reading.Lock()
	defer n.reading.Unlock()
	if n.read != nil && time.Since(n.readAt) < fresh {
		return *n.read, nil
	}
	s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost())
	if errors.Is(err, snapshot.ErrStale) {
		s, err = renew(ctx, n.config)
	}
	if err == nil {
		n.read, n.readAt = &s, time.Now()
	}
	return s, err
}

func renew(ctx context.Context, c Config) (snapshot.Snapshot, error) {
	if err := runDiscover(ctx, c); err != nil {
		return snapshot.Snapshot{}, err
	}
	return snapshot.Load(c.SnapshotPath(), c.GPUHost())
}

// runDiscover runs berth discover, which does nothing if another process just did.
// Its environment is fixed: the caller may be a hook of a stranger's container.
func runDiscover(ctx context.Context, c Config) error {
	args := []string{"discover", "--quiet", "--if-stale"}
	if c.path != "" {
		args = append([]string{"--config", c.path}, args...)
	}
	cmd := exec.CommandContext(ctx, c.Command(), args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("take the node's inventory: %s", or(lastLine(string(out)), err.Error()))
	}
	return nil
}

// lastLine is the error of a berth command; warnings come before it.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return strings.TrimPrefix(out[strings.LastIndexByte(out, '\n')+1:], "berth: ")
}

// Inventory is what the node has, as of a snapshot that fits the machine.
func (n *Node) Inventory(ctx context.Context) (gpu.Inventory, error) {
	s, err := n.snapshot(ctx)
	s.Inventory.ExclusiveNICs = n.config.Policy.NICs == "exclusive"
	return s.Inventory, err
}

// Cgroups is the tree whose cgroups prove that holders live.
func (n *Node) Cgroups() cgroup.Hierarchy { return n.cgroups }

// View says who holds what, and who waits. It writes nothing and takes no lock.
func (n *Node) View() (ledger.View, error) {
	v, err := n.ledger.View()
	if err != nil {
		return ledger.View{}, err
	}
	if s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost()); err == nil {
		v = v.Annotate(s.Inventory)
	}
	return v, nil
}

// Acquire leases every device that is asked for, or none. ask.Inventory and ask.Renew
// are filled in. What policy doesn't allow is an error that Is [ErrForbidden].
func (n *Node) Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error) {
	if err := n.config.Policy.allow(ask.Request); err != nil {
		return ledger.Lease{}, err
	}
	ask.Renew = func(ctx context.Context) (gpu.Inventory, error) { return n.inventoryFor(ctx, ask.Request) }
	inv, err := ask.Renew(ctx)
	if err != nil {
		return ledger.Lease{}, err
	}
	ask.Inventory = inv
	return n.ledger.Acquire(ctx, ask)
}

// Grantable says why a request can never be granted on this node, whoever holds what:
// policy, or what the node has. nil means that it is worth asking.
func (n *Node) Grantable(ctx context.Context, r request.Request) error {
	if err := n.config.Policy.allow(r); err != nil {
		return err
	}
	inv, err := n.inventoryFor(ctx, r)
	if err != nil {
		return err
	}
	_, err = match.Candidates(inv, r)
	return err
}

// inventoryFor is the inventory in which the request can be matched. Of NICs it says
// which work now: their links can be down for a while after boot.
func (n *Node) inventoryFor(ctx context.Context, r request.Request) (gpu.Inventory, error) {
	look := n.Inventory
	if r.CDI() != nil {
		look = func(ctx context.Context) (gpu.Inventory, error) { return n.withCDI(ctx, r) }
	}
	inv, err := look(ctx)
	if err == nil && r.NICs() != "" {
		inv.NICs, err = sysfs.States(n.config.GPUHost(), inv.NICs)
	}
	return inv, err
}

// Evict ends the holder's processes and then its lease: see [guard.Guard.Evict].
func (n *Node) Evict(ctx context.Context, l ledger.Lease) error { return n.guard.Evict(ctx, l) }

// Release gives a lease back, whether its holder lives or not. Releasing one that
// is gone is no error.
func (n *Node) Release(ctx context.Context, id string) error { return n.ledger.Release(ctx, id) }

// ReleaseIfDead gives a lease back unless its holder lives: then it stays, and the
// error Is ledger.ErrLive. Who was just killed is waited for.
func (n *Node) ReleaseIfDead(ctx context.Context, id string) error {
	return n.ledger.ReleaseIfDead(ctx, id)
}

// Repair rebuilds a ledger that can't be trusted from what runs.
func (n *Node) Repair(ctx context.Context) (ledger.Repaired, error) { return n.ledger.Repair(ctx) }

// Leases lists all leases, those of holders that are gone too.
func (n *Node) Leases() ([]ledger.Lease, error) { return n.ledger.Held() }

// CPUs near the devices of a lease, in the kernel's list format; "" if unknown.
func (n *Node) CPUs(ctx context.Context, l ledger.Lease) (string, error) {
	if gpus, _, _ := split(l.Devices); len(gpus) == 0 {
		return "", nil
	}
	inv, err := n.Inventory(ctx)
	if err != nil {
		return "", err
	}
	var lists []string
	for _, d := range l.Devices {
		g, _, ok := inv.Lookup(d.UUID)
		if ok && g.CPUs != "" && !slices.Contains(lists, g.CPUs) {
			lists = append(lists, g.CPUs)
		}
	}
	return strings.Join(lists, ","), nil
}

// Held returns the lease of that id if this process runs inside its holder's
// cgroup: whoever only knows an id can't use the lease.
func (n *Node) Held(id string) (ledger.Lease, error) {
	l, ok, err := n.ledger.Get(id)
	if err != nil {
		return ledger.Lease{}, err
	}
	if !ok {
		return ledger.Lease{}, fmt.Errorf("use lease %q: %w", id, ledger.ErrNotFound)
	}
	own, err := n.cgroups.ProcessPath(n.config.GPUHost().ProcPath(), os.Getpid())
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("use lease %s: %w", id, err)
	}
	if l.Owner.Cgroup == "" || !cgroup.IsWithin(own, l.Owner.Cgroup) {
		return ledger.Lease{}, fmt.Errorf("use lease %s: this process is not part of its holder (%s)", id, l.Owner.Door)
	}
	return l, nil
}
