package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ErrLedgerLost means that there is no ledger although containers or commands hold leases:
// its directory was removed, or the configuration names another one. [Node.Repair] rebuilds
// the ledger from the running containers and commands.
var ErrLedgerLost = errors.New("the ledger is lost")

// CheckLedger returns ErrLedgerLost if there is no ledger although a running container or
// command holds a lease. It takes no new snapshot: a stale one will do, and without one, as at boot and after the loss
// of the state directory, the devices of a holder are unknown. It costs one system call if there is a ledger.
func (n *Node) CheckLedger() error {
	if !n.ledger.IsMissing() {
		return nil
	}
	s, err := snapshot.LoadAny(n.config.SnapshotPath())
	if err != nil && !errors.Is(err, snapshot.ErrStale) {
		return err
	}
	return n.checkHolders(s)
}

// checkHolders returns ErrLedgerLost if a running container or command holds a lease, and there is no ledger.
func (n *Node) checkHolders(s snapshot.Snapshot) error {
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

// findHolders finds what holds devices by a lease, without the ledger: containers by the specs that
// berth has prepared or, if a hook has given the devices, by the notes in their cgroups, and the commands of berth alloc by
// such notes. unknown names containers and commands that hold a lease of devices which the node doesn't have.
func (n *Node) findHolders(s snapshot.Snapshot) (leases []ledger.Lease, unknown []string, err error) {
	all, err := n.guard.ListHolders(filepath.Join(n.config.Data, "tasks"))
	if err != nil {
		return nil, nil, err
	}
	for _, h := range all {
		l, err := leaseOfContainer(s, h)
		if err != nil {
			unknown = append(unknown, fmt.Sprintf("container %s (process %d) holds lease %s: %v", h.Owner.Container, h.Owner.Process.PID, l.ID, err))
		} else if len(l.Devices) > 0 {
			leases = append(leases, l)
		}
	}
	commands, more, err := n.findAllocCommands(s.Inventory)
	// A container that was started inside a command has devices of the command's lease.
	leases = slices.DeleteFunc(leases, func(l ledger.Lease) bool {
		return slices.ContainsFunc(commands, func(c ledger.Lease) bool { return c.ID == l.ID })
	})
	return append(leases, commands...), append(unknown, more...), err
}

// leaseOfContainer returns the lease that a container's spec or note names. After an error it has an id alone.
func leaseOfContainer(s snapshot.Snapshot, h guard.Holder) (l ledger.Lease, err error) {
	if h.Spec == nil {
		l, _, why := parseNote(h.Note, s.Inventory)
		if why != "" {
			return l, errors.New(why)
		}
		h.Owner.UID, l.Owner = l.Owner.UID, h.Owner
		return l, nil
	}
	l.ID, l.Owner = h.Spec.Annotations[LeaseAnnotation], h.Owner
	l.Devices, err = devicesOfNodes(s.Inventory, s.Key.Majors, h.Spec.Linux.Devices)
	l.Request = requestFor(l.Devices)
	return l, err
}

// requestFor returns the request for exactly these devices.
func requestFor(devices []gpu.Device) string {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.UUID)
	}
	return "device=" + strings.Join(ids, ",")
}

// NoteLease records a lease in the cgroup that proves its holder's life: of a command, and of a container whose spec doesn't
// name the lease. Repair reads it there if the ledger is lost: the holder and its user can't change it, and it ends with the cgroup.
func (n *Node) NoteLease(l ledger.Lease) error {
	namespace, err := n.readMountNamespace()
	if err != nil {
		return err
	}
	var uuids []string
	for _, d := range l.Devices {
		uuids = append(uuids, d.UUID)
	}
	return n.cgroups.SetNote(l.Owner.Cgroup, strings.Join([]string{l.ID, namespace, strings.Join(uuids, ","), strconv.Itoa(l.Owner.UID)}, " "))
}

// readMountNamespace returns the mount namespace of this machine's file systems: that of this process, or
// of process 1 where systemd has given this process one of its own.
func (n *Node) readMountNamespace() (string, error) {
	process := "self"
	if n.config.Confined {
		process = "1"
	}
	return os.Readlink(n.config.GPUHost().ProcPath(process, "ns/mnt"))
}

// findAllocCommands finds the commands of berth alloc that were started on this machine's file systems, and what they hold
// by the notes in their cgroups. Of each lease one process is returned, and its cgroup proves the life of all. unknown
// names commands whose devices can't be told.
func (n *Node) findAllocCommands(inv gpu.Inventory) (leases []ledger.Lease, unknown []string, err error) {
	groups, err := listCommandCgroups(n.cgroups)
	if err != nil {
		return nil, nil, err
	}
	proc := n.config.GPUHost().ProcPath()
	own, err := n.readMountNamespace()
	if err != nil {
		return nil, nil, err
	}
	for _, path := range groups {
		pids, err := n.cgroups.PIDs(path)
		if err != nil {
			return nil, nil, err
		}
		note, err := n.cgroups.Note(path)
		if err != nil {
			return nil, nil, err
		}
		l, namespace, why := parseNote(note, inv)
		stuck := 0
		for _, pid := range pids {
			start, err := process.Start(proc, pid)
			at := namespace
			if at == "" { // without a note the process itself tells
				at, _ = process.ReadLink(proc, pid, "ns/mnt") // "" if it has just ended
			}
			if errors.Is(err, process.ErrStuck) && (at == "" || at == own) {
				stuck = pid
			}
			if err != nil || at != own {
				continue
			}
			stuck = 0
			switch {
			case why != "":
				unknown = append(unknown, fmt.Sprintf("process %d of a command of berth alloc holds a lease: %s", pid, why))
			case len(l.Devices) > 0:
				l.Owner.EntryPoint, l.Owner.Name, l.Owner.Cgroup = "alloc", strconv.Itoa(pid), path
				l.Owner.Process = ledger.Process{PID: pid, Start: start}
				leases = append(leases, l)
			}
			break
		}
		if stuck != 0 {
			unknown = append(unknown, fmt.Sprintf("process %d of a command of berth alloc may hold a lease: %v", stuck, process.ErrStuck))
		}
	}
	return leases, unknown, nil
}

// parseNote reads what NoteLease has written: the lease, of its owner only the uid, and the mount namespace that it was
// taken in. why says why its devices aren't known. Notes of earlier versions have no uid: theirs is root's.
func parseNote(note string, inv gpu.Inventory) (l ledger.Lease, namespace, why string) {
	words := strings.Split(note, " ")
	if len(words) < 3 {
		return l, "", "its cgroup doesn't say which devices"
	}
	l.ID, namespace = words[0], words[1]
	if len(words) > 3 {
		uid, err := strconv.Atoi(words[3])
		if err != nil {
			return l, namespace, "its cgroup doesn't say which user"
		}
		l.Owner.UID = uid
	}
	for uuid := range strings.SplitSeq(words[2], ",") {
		switch g, slice, found := inv.Lookup(uuid); {
		case found && slice != nil:
			l.Devices = append(l.Devices, g.SliceDevice(*slice))
		case found:
			l.Devices = append(l.Devices, g.Device())
		case strings.HasPrefix(uuid, "GPU-"), strings.HasPrefix(uuid, "MIG-"):
			return l, namespace, uuid + " is of no GPU that the node has"
		}
	}
	l.Request = requestFor(l.Devices)
	return l, namespace, ""
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
