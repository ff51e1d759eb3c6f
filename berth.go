// Package berth gives containerised tasks GPUs of their own. It is the page where
// the stages meet, and the Go API for job runners:
//
//	discover → request → match → lease → edits → spec → run → release
//
// [Open] gives a [Node]; [Node.Acquire] leases devices, [Node.Prepare] changes the
// OCI spec of the container that is to use them, and [Node.Release] gives them
// back. A lease needs no keeper: when its holder's processes are gone, the next
// Acquire on the machine frees it, whatever happened to whoever took it.
//
// The package needs neither cgo nor a daemon. What it doesn't do: run containers
// (package launcher does), or talk to NVML (the berth command does).
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
}

// fresh is for how long what was read is taken to fit the machine, the snapshot, the
// directory of driver files and the views of devices: for the few milliseconds in which a
// container or the ranks of a gang start, and not for a wait in the queue.
const fresh = 100 * time.Millisecond

// Open returns the machine that the configuration describes. It reads nothing of
// it yet: what doesn't need the inventory works without a driver.
func Open(c Config) (*Node, error) {
	tree, err := cgroup.Detect(c.Host.Cgroup)
	if err != nil {
		return nil, err
	}
	n := &Node{config: c, cgroups: tree}
	n.ledger = openLedger(c, n.grantDevices)
	n.guard = guard.Guard{
		Host: c.GPUHost(), Cgroups: tree, Ledger: n.ledger, Disabled: !c.Policy.Guarded(),
		Exemptions: guard.Exemptions{Namespaces: c.Policy.ExemptNamespaces, KeyFile: c.Policy.ExemptKey},
	}
	return n, nil
}

func openLedger(c Config, granted func([]ledger.Lease) error) *ledger.Ledger {
	return ledger.Open(ledger.Options{Dir: c.State, Events: c.Data, Proc: c.Host.Proc, Cgroup: c.Host.Cgroup, Log: c.Log, Granted: granted})
}

// Guard keeps containers without a lease away from this machine's accelerators.
func (n *Node) Guard() guard.Guard { return n.guard }

// Cgroups is the tree whose cgroups prove that holders live.
func (n *Node) Cgroups() cgroup.Hierarchy { return n.cgroups }

// Inventory is what the node has, as of a snapshot that fits the machine. GPUs that have
// fallen off the PCI bus since are marked as lost.
func (n *Node) Inventory(ctx context.Context) (gpu.Inventory, error) {
	inv, err := n.readInventory(ctx)
	inv.GPUs = sysfs.MarkLost(n.config.GPUHost(), inv.GPUs)
	return inv, err
}

// readInventory is Inventory without a look at the PCI bus, which takes several system calls
// for each GPU.
func (n *Node) readInventory(ctx context.Context) (gpu.Inventory, error) {
	s, err := n.loadSnapshot(ctx)
	s.Inventory.ExclusiveNICs = n.config.Policy.NICs == "exclusive"
	return s.Inventory, err
}

// loadSnapshot reads the inventory snapshot, unless it just did. If there is none, or the machine has
// changed since it was taken, it has the berth command take a new one, which can
// last as long as the driver's library needs. What happened on the PCI bus since isn't a change.
func (n *Node) loadSnapshot(ctx context.Context) (snapshot.Snapshot, error) {
	n.reading.Lock()
	defer n.reading.Unlock()
	if n.read != nil && time.Since(n.readAt) < fresh {
		return *n.read, nil
	}
	s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost())
	if errors.Is(err, snapshot.ErrStale) {
		s, err = renewSnapshot(ctx, n.config)
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

// runDiscover runs berth discover, which does nothing if another process just did.
// Its environment is fixed: the caller may be a hook of an untrusted container.
func runDiscover(ctx context.Context, c Config) error {
	args := []string{"discover", "--quiet", "--if-stale"}
	if c.path != "" {
		args = append([]string{"--config", c.path}, args...)
	}
	cmd := exec.CommandContext(ctx, c.Command(), args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("take the node's inventory: %s", cmp.Or(lastLine(string(out)), err.Error()))
	}
	return nil
}

// lastLine is the error of a berth command; warnings come before it.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return strings.TrimPrefix(out[strings.LastIndexByte(out, '\n')+1:], "berth: ")
}
