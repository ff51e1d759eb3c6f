package doctor

import (
	"errors"
	"slices"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/gpu"
	gpudriver "github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/smallfile"
)

func (e *examination) readSnapshot() (snapshot.Snapshot, error) {
	return snapshot.Load(e.Config.SnapshotPath(), e.host)
}

// checkSnapshot reports a stale inventory snapshot: the next start of a container takes a
// new one, and waits for it.
func (e *examination) checkSnapshot(r *report) error {
	s, err := e.readSnapshot()
	switch {
	case errors.Is(err, snapshot.ErrStale):
		r.warn(r.command("discover"), "%v", err)
	case err != nil:
		return err
	default:
		r.ok("%s of %s", e.Config.SnapshotPath(), s.Taken.Format("2006-01-02 15:04:05"))
	}
	return nil
}

// checkDriverCopies reports copies of the driver's files that have changed.
func (e *examination) checkDriverCopies(r *report) error {
	s, err := e.readSnapshot()
	if err != nil || s.DriverDir == "" {
		return nil //nolint:nilerr // reported by snapshot.fresh
	}
	switch dir, err := driver.Load(s.DriverDir, gpu.Compute|gpu.Utility); {
	case errors.Is(err, driver.ErrDamaged):
		r.warn(r.command("discover"), "%v", err)
	case err != nil:
		return err
	default:
		r.ok("%s, %d libraries", s.DriverDir, len(dir.Libraries))
	}
	return nil
}

// sharedFacts are how containers get the driver's files.
type sharedFacts struct {
	// mount is the path of the idmapped mount of these files. mounted means that it is mounted.
	mount   string
	mounted bool
	// owned is the reason for which the machine can't have such a mount, "" if it can.
	owned string
	// leasable means that the kernel lets processes take leases on files.
	leasable bool
}

// checkSharedMount reports driver files that are owned by root of the containers.
func (e *examination) checkSharedMount(r *report) error {
	s, err := e.readSnapshot()
	if err != nil || s.DriverDir == "" {
		return nil //nolint:nilerr // reported by snapshot.fresh
	}
	enabled, err := smallfile.String(e.host.ProcPath("sys/fs/leases-enable"))
	d := e.Config.SharedFiles()
	decideSharedMount(r, sharedFacts{mount: d.Mount, mounted: d.IsMounted(), owned: s.OwnedFiles, leasable: err != nil || enabled != "0"})
	return nil
}

// decideSharedMount reports a machine on which a container can block all others by taking
// leases on the driver's files.
func decideSharedMount(r *report, f sharedFacts) {
	switch {
	case f.owned == "" && !f.mounted:
		r.warn(r.command("discover"), "%s is not mounted: the next container that needs it mounts it", f.mount)
	case f.owned == "":
		r.ok("%s has the driver's files without their owner", f.mount)
	case !f.leasable:
		r.ok("the driver's files keep their owner, but no process can take leases on files (fs.leases-enable = 0): %s", f.owned)
	default:
		r.warn("sysctl -w fs.leases-enable=0, or put data of "+r.configPath+" on ext4, xfs or btrfs",
			"root of a container can take leases on the driver's files and so block every program that uses a GPU: %s", f.owned)
	}
}

func (e *examination) checkLostGPUs(r *report) error {
	s, err := e.readSnapshot()
	if err != nil {
		return nil //nolint:nilerr // reported by snapshot.fresh
	}
	xids, err := gpudriver.Xids(e.host)
	if err != nil {
		return err
	}
	xids = slices.DeleteFunc(xids, func(x gpudriver.Xid) bool { return x.Sequence <= s.KernelLog || x.Code != gpudriver.XidOffBus })
	decideLostGPUs(r, sysfs.MarkLost(e.host, s.Inventory.GPUs), xids)
	return nil
}

// decideLostGPUs reports GPUs that NVML couldn't query when the snapshot was taken, that can't
// be reached on the PCI bus, or that the kernel's log has reported as lost since the snapshot.
func decideLostGPUs(r *report, gpus []gpu.GPU, xids []gpudriver.Xid) {
	for _, g := range gpus {
		reported := slices.ContainsFunc(xids, func(x gpudriver.Xid) bool { return x.PCI == g.PCI })
		switch {
		case g.Lost != "":
			r.warn("dmesg | grep NVRM shows the reason; when the GPU is back, "+r.command("discover"), "GPU %d (%s) is lost: %s", g.Index, g.PCI, g.Lost)
		case reported:
			r.warn(r.command("discover"), "GPU %d (%s) fell off the bus, by the kernel's log (dmesg | grep NVRM)", g.Index, g.PCI)
		}
	}
	r.okUnlessReported("no GPU is lost")
}
