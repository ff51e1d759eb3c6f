package doctor

import (
	"errors"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
)

func (e *exam) snapshot() (snapshot.Snapshot, error) {
	return snapshot.Load(e.Config.SnapshotPath(), e.host)
}

// fresh: a stale snapshot mends itself at the cost of the next start.
func (e *exam) fresh(r *result) error {
	s, err := e.snapshot()
	switch {
	case errors.Is(err, snapshot.ErrStale):
		r.warn(e.berth("discover"), "%v", err)
	case err != nil:
		return err
	default:
		r.ok("%s of %s", e.Config.SnapshotPath(), s.Taken.Format("2006-01-02 15:04:05"))
	}
	return nil
}

// copies: the driver's files that containers get are as they were made.
func (e *exam) copies(r *result) error {
	s, err := e.snapshot()
	if err != nil || s.DriverDir == "" {
		return nil // which is said already
	}
	switch dir, err := driver.Load(s.DriverDir, gpu.Compute|gpu.Utility); {
	case errors.Is(err, driver.ErrDamaged):
		r.warn(e.berth("discover"), "%v", err)
	case err != nil:
		return err
	default:
		r.ok("%s, %d libraries", s.DriverDir, len(dir.Libraries))
	}
	return nil
}

// lost: GPUs that NVML couldn't ask when the snapshot was taken.
func (e *exam) lost(r *result) error {
	s, err := e.snapshot()
	if err != nil {
		return nil // which is said already
	}
	before := len(r.findings)
	for _, g := range s.Inventory.GPUs {
		if g.Lost != "" {
			r.warn("the kernel's log has the reason (dmesg | grep NVRM); when it is back, "+e.berth("discover"), "GPU %d (%s) is lost: %s", g.Index, g.PCI, g.Lost)
		}
	}
	r.fine(before, "no GPU is lost")
	return nil
}
