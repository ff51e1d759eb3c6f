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

func (e *exam) readSnapshot() (snapshot.Snapshot, error) {
	return snapshot.Load(e.Config.SnapshotPath(), e.host)
}

// checkSnapshot reports a stale inventory snapshot: the next start of a container takes a
// new one, and waits for it.
func (e *exam) checkSnapshot(r *report) error {
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
func (e *exam) checkDriverCopies(r *report) error {
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

// sharedFacts are how containers get the files that they have in common.
type sharedFacts struct {
	// mount is the idmapped mount of these files, and mounted says that it is there.
	mount   string
	mounted bool
	// owned is why there can be none, "" if there can.
	owned string
	// leasable says that the kernel lets processes take leases on files.
	leasable bool
}

// checkSharedMount reports files of all containers that root of a container owns.
func (e *exam) checkSharedMount(r *report) error {
	s, err := e.readSnapshot()
	if err != nil || s.DriverDir == "" {
		return nil //nolint:nilerr // reported by snapshot.fresh
	}
	enabled, err := smallfile.String(e.host.ProcPath("sys/fs/leases-enable"))
	d := e.Config.SharedFiles()
	decideSharedMount(r, sharedFacts{mount: d.Mount, mounted: d.IsMounted(), owned: s.OwnedFiles, leasable: err != nil || enabled != "0"})
	return nil
}

// decideSharedMount reports when a container can freeze all others.
func decideSharedMount(r *report, f sharedFacts) {
	switch {
	case f.owned == "" && !f.mounted:
		r.warn(r.command("discover"), "%s is not mounted: the next container that needs it mounts it", f.mount)
	case f.owned == "":
		r.ok("%s has the driver's files without their owner", f.mount)
	case !f.leasable:
		r.ok("the driver's files have their owner, and nobody can take a lease on a file (fs.leases-enable = 0): %s", f.owned)
	default:
		r.warn("sysctl -w fs.leases-enable=0, or put data of "+r.configPath+" on ext4, xfs or btrfs",
			"root of a container can take leases on the driver's files and so hold up every program that uses a GPU: %s", f.owned)
	}
}

func (e *exam) checkLostGPUs(r *report) error {
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

// decideLostGPUs reports GPUs that NVML couldn't ask when the snapshot was taken, that can't be
// reached on the PCI bus, or that the kernel's log calls lost since the snapshot.
func decideLostGPUs(r *report, gpus []gpu.GPU, xids []gpudriver.Xid) {
	for _, g := range gpus {
		reported := slices.ContainsFunc(xids, func(x gpudriver.Xid) bool { return x.PCI == g.PCI })
		switch {
		case g.Lost != "":
			r.warn("the kernel's log has the reason (dmesg | grep NVRM); when it is back, "+r.command("discover"), "GPU %d (%s) is lost: %s", g.Index, g.PCI, g.Lost)
		case reported:
			r.warn(r.command("discover"), "GPU %d (%s) fell off the bus, by the kernel's log (dmesg | grep NVRM)", g.Index, g.PCI)
		}
	}
	r.okOtherwise("no GPU is lost")
}
