// Package berth is the Go API for job runners: it gives containerised tasks GPUs of
// their own. It runs the stages of a launch:
//
//	discover → request → match → lease → edits → spec → run → release
//
// [Open] gives a [Node]; [Node.Acquire] leases devices, [Node.Prepare] changes the
// OCI spec of the container that is to use them, and [Node.Release] releases them.
// No process has to watch a lease: when its holder's processes have ended, the next
// Acquire on the machine releases it, even if the process that took it was killed.
//
// The package needs neither cgo nor a daemon. It runs no containers (package launcher
// does) and doesn't call NVML (the berth command does).
package berth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Node is this machine: its inventory, its leases and its containers. It is safe for
// concurrent use, and any number of processes may open one.
type Node struct {
	config  Config
	ledger  *ledger.Ledger
	cgroups cgroup.Hierarchy
	guard   guard.Guard
	users   username.Finder

	reading sync.Mutex
	read    *snapshot.Snapshot // nil until the snapshot is needed
	readAt  time.Time

	loading   sync.Mutex
	loaded    driver.Dir // the directory of the snapshot, as of loadedAt
	loadedFor gpu.Capabilities
	loadedAt  time.Time
}

// freshFor is how long a snapshot and a checked directory of driver files are used without
// another check: during the start of a container or of a gang's ranks, but not during a
// wait in the queue.
const freshFor = 100 * time.Millisecond

// Open returns the machine that the configuration describes. It doesn't read the
// inventory: methods that don't need it work without a driver.
func Open(c Config) (*Node, error) {
	tree, err := cgroup.Detect(c.Host.Cgroup)
	if err != nil {
		return nil, err
	}
	n := &Node{config: c, cgroups: tree}
	n.ledger = openLedger(c, n.grantDevices, n.inspectEnded)
	n.guard = guard.Guard{
		Host: c.GPUHost(), Cgroups: tree, Ledger: n.ledger, Disabled: !c.Policy.Guarded(),
		Exemptions: guard.Exemptions{Namespaces: c.Policy.ExemptNamespaces, KeyFile: c.Policy.ExemptKey},
		IsCommand:  IsCommandCgroup, RuntimeRoots: c.runtimeRootsPath(),
		CloseCommand: func(group string) error { return tree.TakeBack(CommandTasks(group)) },
	}
	return n, nil
}

func openLedger(c Config, granted func([]ledger.Lease) error, inspect func(context.Context, []ledger.Lease) error) *ledger.Ledger {
	o := ledger.Options{Dir: c.State, Events: c.Data, Proc: c.Host.Proc, Cgroup: c.Host.Cgroup, Log: c.Log, Granted: granted}
	if c.Policy.ChecksInUse() {
		o.Inspect = inspect
	}
	return ledger.Open(o)
}

// State returns the directory of the ledger and of the broker's socket.
func (n *Node) State() string { return n.config.State }

// Guard returns the isolation of containers without a lease on this machine.
func (n *Node) Guard() guard.Guard { return n.guard }

// Cgroups returns the cgroup tree of this machine.
func (n *Node) Cgroups() cgroup.Hierarchy { return n.cgroups }

// Inventory returns the inventory of a snapshot that fits the machine. GPUs that have
// fallen off the PCI bus since the snapshot are marked as lost.
func (n *Node) Inventory(ctx context.Context) (gpu.Inventory, error) {
	inv, err := n.readInventory(ctx)
	inv.GPUs = sysfs.MarkLost(n.config.GPUHost(), inv.GPUs)
	return inv, err
}

// readInventory is Inventory without the check of the PCI bus, which takes several system
// calls for each GPU.
func (n *Node) readInventory(ctx context.Context) (gpu.Inventory, error) {
	s, err := n.loadSnapshot(ctx)
	s.Inventory.ExclusiveNICs = n.config.Policy.NICs == "exclusive"
	return s.Inventory, err
}

// loadSnapshot reads the inventory snapshot at most once in freshFor. If there is no
// snapshot, or the machine has changed since it was taken, loadSnapshot runs berth
// discover, which takes as long as the driver's library needs. GPUs that have fallen off
// the PCI bus are not a change.
func (n *Node) loadSnapshot(ctx context.Context) (snapshot.Snapshot, error) {
	n.reading.Lock()
	defer n.reading.Unlock()
	if n.read != nil && time.Since(n.readAt) < freshFor {
		return *n.read, nil
	}
	s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost())
	if errors.Is(err, snapshot.ErrStale) && !n.config.Confined {
		s, err = renewSnapshot(ctx, n.config)
	}
	if errors.Is(err, snapshot.ErrStale) && n.config.Confined {
		err = fmt.Errorf("%w: the discovery of each minute takes a new one", err)
	}
	if err == nil {
		n.read, n.readAt = &s, time.Now()
	}
	return s, err
}

func renewSnapshot(ctx context.Context, c Config) (snapshot.Snapshot, error) {
	if err := runDiscover(ctx, c); err != nil {
		return snapshot.Snapshot{}, err
	}
	return snapshot.Load(c.SnapshotPath(), c.GPUHost())
}

// runDiscover runs berth discover, which does nothing if another process has just taken a
// snapshot. Its environment is fixed: the caller may be a hook of an untrusted container.
func runDiscover(ctx context.Context, c Config) error {
	args := []string{"discover", "--quiet", "--if-stale"}
	if c.path != "" {
		args = append([]string{"--config", c.path}, args...)
	}
	cmd := exec.CommandContext(ctx, c.Command(), args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	switch out, err := cmd.CombinedOutput(); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("take the node's inventory: %s", cmp.Or(lastLine(string(out)), err.Error()))
	}
	return nil
}

// lastLine returns the error in the output of a berth command: its last line, after any
// warnings.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return strings.TrimPrefix(out[strings.LastIndexByte(out, '\n')+1:], "berth: ")
}
