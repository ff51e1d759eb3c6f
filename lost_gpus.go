package berth

import (
	"slices"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
)

// LostGPUs returns why GPUs of the snapshot can't be used, by UUID. It asks the PCI bus and no
// driver. It is empty where there is no snapshot of this machine.
func (n *Node) LostGPUs() map[string]string {
	lost := map[string]string{}
	h := n.config.GPUHost()
	s, err := snapshot.Load(n.config.SnapshotPath(), h)
	if err != nil {
		return lost
	}
	for _, g := range sysfs.MarkLost(h, s.Inventory.GPUs) {
		if g.Lost != "" {
			lost[g.UUID] = g.Lost
		}
	}
	return lost
}

// unnoticed is what happened to the GPUs since the snapshot, and what its key doesn't show.
type unnoticed struct {
	// changed: the snapshot has to be taken anew.
	changed bool
	// lost are PCI addresses of GPUs that the driver has called lost in the kernel's log.
	lost []string
	// xid is the sequence of the newest record of a GPU's error.
	xid uint64
}

// findUnnoticed compares a snapshot with what the PCI bus, the driver's own list of GPUs and the
// kernel's log say now.
func findUnnoticed(h gpu.Host, s snapshot.Snapshot) (u unnoticed, err error) {
	known, err := driver.GPUs(h)
	if err != nil {
		return u, err
	}
	u.changed = !slices.Equal(s.OffBus, listOffBus(h, s.Inventory.GPUs)) || slices.ContainsFunc(s.Inventory.GPUs, func(g gpu.GPU) bool {
		return slices.ContainsFunc(known, func(d driver.GPU) bool { return d.PCI == g.PCI && d.UUID != "" && d.UUID != g.UUID })
	})
	for _, g := range s.Inventory.GPUs {
		if g.Lost == reportedLost {
			u.lost = append(u.lost, g.PCI)
		}
	}
	xids, err := driver.Xids(h)
	for _, x := range xids {
		u.xid = max(u.xid, x.Sequence)
		if x.Code == driver.XidOffBus && x.Sequence > s.KernelLog {
			u.changed, u.lost = true, append(u.lost, x.PCI)
		}
	}
	return u, err
}

// listOffBus returns the addresses of GPUs that can't be reached on the PCI bus.
func listOffBus(h gpu.Host, gpus []gpu.GPU) (all []string) {
	for _, g := range gpus {
		if sysfs.OffBus(h, g) != "" {
			all = append(all, g.PCI)
		}
	}
	return all
}

// lastXid returns the sequence of the newest record of a GPU's error.
func lastXid(h gpu.Host) (last uint64, err error) {
	xids, err := driver.Xids(h)
	for _, x := range xids {
		last = max(last, x.Sequence)
	}
	return last, err
}

// reportedLost is why a GPU is lost that the kernel's log calls so. It is, until the next [Discover].
const reportedLost = "fell off the bus, by the kernel's log (Xid 79)"

// markReported marks GPUs as lost that the kernel's log calls so.
func markReported(gpus []gpu.GPU, addresses []string) {
	for i := range gpus {
		if gpus[i].Lost == "" && slices.Contains(addresses, gpus[i].PCI) {
			gpus[i].Lost = reportedLost
		}
	}
}

// tellHolders adds an event for each lease on a GPU that is lost now and was not before. A
// ledger that can't be read keeps nobody from discovering.
func (n *Node) tellHolders(before, now gpu.Inventory) {
	leases, err := n.Leases()
	if err != nil {
		return
	}
	for _, g := range now.GPUs {
		if was, _, ok := before.Lookup(g.UUID); g.Lost == "" || ok && was.Lost != "" {
			continue
		}
		for _, l := range leases {
			if slices.ContainsFunc(l.Devices, g.Device().Conflicts) {
				n.ledger.LogRemovals("lost", l.ID, l.Owner, []edits.Removal{edits.Remark("GPU %d (%s) is lost: %s", g.Index, g.UUID, g.Lost)})
			}
		}
	}
}
