package doctor

import (
	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/guard"
)

// checkRunningContainers reports running containers that could open accelerators beyond
// their leases, whether berth discover can close these or not.
func (e *examination) checkRunningContainers(r *report) error {
	node, err := berth.Open(e.Config)
	switch {
	case err != nil:
		return nil //nolint:nilerr // of cgroups, reported by cgroups.version
	case e.User != "":
		return errRootOnly
	}
	if _, err := node.View(); err != nil {
		return nil //nolint:nilerr // reported by ledger.state
	}
	open, err := node.Guard().ListWideContainers()
	decideRunningContainers(r, open)
	return err
}

func decideRunningContainers(r *report, wide []guard.WideContainer) {
	for _, c := range wide {
		fix := "start it again with berth as its runtime"
		if c.CanNarrow {
			fix = r.command("discover")
		}
		r.warn(fix, "container %s (%s) could open accelerators that it holds no lease of: %s", c.ID, c.Root, c.Why)
	}
	r.okUnlessReported("none opens accelerators beyond its lease")
}
