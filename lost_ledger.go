package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ErrLedgerLost means that there is no ledger although containers or commands hold leases:
// its directory was removed, or the configuration names another one. [Node.Repair] rebuilds
// the ledger from the running containers and commands.
var ErrLedgerLost = errors.New("the ledger is lost")

// CheckLedger returns ErrLedgerLost if there is no ledger although a running container or
// command holds a lease. It takes no new snapshot.
func (n *Node) CheckLedger() error {
	if !n.ledger.IsMissing() {
		return nil
	}
	s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost())
	if errors.Is(err, snapshot.ErrStale) {
		return nil // a server without a driver: a request for GPUs has a snapshot taken first
	}
	if err != nil {
		return err
	}
	holders, unknown, err := n.findHolders(s)
	if err != nil || len(holders)+len(unknown) == 0 {
		return err
	}
	if !n.ledger.IsMissing() {
		return nil // another process has created the ledger meanwhile, and the holders that were found
	}
	if len(holders) == 0 {
		return fmt.Errorf("%w: %s has none, and %s", ErrLedgerLost, n.config.State, unknown[0])
	}
	h := holders[0]
	return fmt.Errorf("%w: %s has none, and %s %s (process %d) holds %s by lease %s", ErrLedgerLost,
		n.config.State, h.Owner.EntryPoint, h.Owner.Name, h.Owner.Process.PID, strings.Join(gpuNames(h.Devices), ", "), h.ID)
}

func gpuNames(devices []gpu.Device) (names []string) {
	for _, d := range devices {
		names = append(names, "GPU "+d.Index)
	}
	return names
}

// findHolders finds the holders of leases without the ledger: containers by the specs that
// berth has prepared, and commands of berth alloc by their environment. unknown describes
// containers whose leased devices the node doesn't have. A container that got its devices
// from a hook isn't found, because its spec doesn't have them.
func (n *Node) findHolders(s snapshot.Snapshot) (leases []ledger.Lease, unknown []string, err error) {
	all, err := n.guard.ListHolders(filepath.Join(n.config.Data, "tasks"))
	if err != nil {
		return nil, nil, err
	}
	for _, h := range all {
		devices, err := devicesOfNodes(s.Inventory, s.Key.Majors, h.Spec.Linux.Devices)
		if err != nil {
			unknown = append(unknown, fmt.Sprintf("container %s (process %d) holds lease %s: %v",
				h.Owner.Container, h.Owner.Process.PID, h.Spec.Annotations[LeaseAnnotation], err))
		}
		if len(devices) > 0 {
			leases = append(leases, ledger.Lease{ID: h.Spec.Annotations[LeaseAnnotation], Devices: devices, Request: requestFor(devices), Owner: h.Owner})
		}
	}
	commands, err := n.findAllocCommands(s.Inventory)
	return append(leases, commands...), unknown, err
}

// requestFor returns the request for exactly these devices.
func requestFor(devices []gpu.Device) string {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.UUID)
	}
	return "device=" + strings.Join(ids, ",")
}

// findAllocCommands finds the commands of berth alloc. It returns one process for each
// lease; the lease's cgroup proves the life of all its processes.
func (n *Node) findAllocCommands(inv gpu.Inventory) (leases []ledger.Lease, err error) {
	dir, err := n.cgroups.Dir("/berth")
	if err != nil {
		return nil, err
	}
	groups, _ := filepath.Glob(filepath.Join(dir, "alloc-*")) // the pattern is well-formed
	proc := n.config.GPUHost().ProcPath()
	for _, group := range groups {
		path := "/berth/" + filepath.Base(group)
		pids, err := n.cgroups.PIDs(path)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			if l, ok := readCommandLease(proc, pid, inv); ok {
				l.Owner.Cgroup = path
				leases = append(leases, l)
				break
			}
		}
	}
	return leases, nil
}

// readCommandLease reads a lease from the environment of a process in the same mount
// namespace as this one.
func readCommandLease(proc string, pid int, inv gpu.Inventory) (l ledger.Lease, ok bool) {
	dir := proc + "/" + strconv.Itoa(pid)
	own, err := os.Readlink(proc + "/self/ns/mnt")
	other, err2 := os.Readlink(dir + "/ns/mnt")
	start, err3 := process.Start(proc, pid)
	environ, err4 := smallfile.String(dir + "/environ")
	if errors.Join(err, err2, err3, err4) != nil || own != other {
		return l, false
	}
	for word := range strings.SplitSeq(environ, "\x00") {
		if id, found := strings.CutPrefix(word, "BERTH_LEASE="); found {
			l.ID = id
		}
		if list, found := strings.CutPrefix(word, "BERTH_DEVICES="); found {
			for uuid := range strings.SplitSeq(list, ",") {
				if g, slice, found := inv.Lookup(uuid); found && slice != nil {
					l.Devices = append(l.Devices, g.SliceDevice(*slice))
				} else if found {
					l.Devices = append(l.Devices, g.Device())
				}
			}
		}
	}
	l.Request = requestFor(l.Devices)
	l.Owner = ledger.Owner{EntryPoint: "alloc", Name: strconv.Itoa(pid), Process: ledger.Process{PID: pid, Start: start}}
	return l, len(l.Devices) > 0
}

// Repair rebuilds a damaged ledger from its receipts, or a lost ledger from the running
// containers and commands. A container whose devices are unknown is an error then.
func (n *Node) Repair(ctx context.Context) (ledger.Repaired, error) {
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return n.ledger.Repair(ctx)
	}
	lost := n.CheckLedger()
	if !errors.Is(lost, ErrLedgerLost) {
		return n.ledger.Repair(ctx)
	}
	holders, unknown, err := n.findHolders(s)
	if err != nil {
		return ledger.Repaired{}, err
	}
	if len(unknown) > 0 { // their devices would be leased a second time
		return ledger.Repaired{}, fmt.Errorf("the ledger can't be rebuilt yet: %s; end what this names (berth rm -f, or its engine), then berth repair", strings.Join(unknown, "; "))
	}
	return n.ledger.Adopt(ctx, holders, lost)
}
