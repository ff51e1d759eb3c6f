package doctor

import (
	"errors"
	"slices"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/gpu"
	gpudriver "github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
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
