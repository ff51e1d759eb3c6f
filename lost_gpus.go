package berth

import (
	"slices"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
)

// LostGPUs returns the reasons for which GPUs of the snapshot are lost, by UUID. It reads
// the PCI bus and calls no driver. Without a snapshot of this machine the result is empty.
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

// gpuChanges are changes of the GPUs since the snapshot that the snapshot's key doesn't show.
type gpuChanges struct {
	// changed means that a new snapshot has to be taken.
	changed bool
	// lost are PCI addresses of GPUs that the driver has reported as lost in the kernel's log.
	lost []string
	// xid is the sequence number of the newest GPU error in the kernel's log.
	xid uint64
}

// findGPUChanges compares a snapshot with the PCI bus, the driver's list of GPUs and the
// kernel's log.
func findGPUChanges(h gpu.Host, s snapshot.Snapshot) (u gpuChanges, err error) {
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

// lastXid returns the sequence number of the newest GPU error in the kernel's log.
func lastXid(h gpu.Host) (last uint64, err error) {
	xids, err := driver.Xids(h)
	for _, x := range xids {
		last = max(last, x.Sequence)
	}
	return last, err
}

// reportedLost is the reason of a GPU that is lost according to the kernel's log. It holds
// until the next [Discover].
const reportedLost = "fell off the bus, by the kernel's log (Xid 79)"

// markReportedLost marks the GPUs at these PCI addresses as lost.
func markReportedLost(gpus []gpu.GPU, addresses []string) {
	for i := range gpus {
		if gpus[i].Lost == "" && slices.Contains(addresses, gpus[i].PCI) {
			gpus[i].Lost = reportedLost
		}
	}
}

// logLostGPUs logs an event for each lease on a GPU that is lost now and was not before. It
// is no part of discovery that has to succeed: an unreadable ledger is ignored.
func (n *Node) logLostGPUs(before, now gpu.Inventory) {
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
