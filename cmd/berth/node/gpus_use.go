package node

import (
	"context"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
)

// nvmlTimeout is how long berth gpus waits for an answer of NVML.
const nvmlTimeout = 5 * time.Second

// meter measures the use of devices with NVML. After a failure it doesn't start berth-nvml again: a process that hangs
// in the driver can't be killed, and each further one would hang too.
type meter struct {
	gauge   *probe.Gauge
	node    *berth.Node
	failed  error
	printed string // the last error that was printed, so that --watch prints each once
}

func newMeter(c *cli.Context, node *berth.Node) *meter {
	return &meter{gauge: &probe.Gauge{Child: backend.NVMLChild(c, node, "meter", nvmlTimeout)}, node: node}
}

// addUse adds used memory, utilisation and the processes without a lease to the devices, as NVML reports them now. If
// NVML fails, the processes are those of the last discovery, and a line on standard error has the reason.
func (m *meter) addUse(ctx context.Context, n *node, inv gpu.Inventory) {
	uuids := berth.ListComputable(inv)
	if len(uuids) == 0 {
		return
	}
	var uses []probe.Use
	if m.failed == nil {
		uses, m.failed = m.gauge.Measure(ctx, uuids)
	}
	err := m.failed
	for _, u := range uses {
		n.setUse(u)
	}
	problem := "the use of GPUs is unknown: "
	if m.node.ChecksInUse() {
		problem = "the use of GPUs is unknown, and processes are those of the last discovery: "
		found := m.node.UnleasedProcesses()
		if err == nil {
			found, err = m.node.FindUnleased(uses)
		}
		n.addProcesses(found)
	}
	if m.failed == nil && err != nil && m.node.GuardHides(inv.GPUs) {
		return // the table shows "-" for GPUs that a user can't open
	}
	if err != nil && ctx.Err() == nil && m.printed != err.Error() {
		m.printed = err.Error()
		verb.PrintError(problem + m.printed)
	}
}

// setUse records the use of a device, or that NVML calls it lost now: the inventory knows that after the next discovery.
// NVML reports a total of 0 where it has no memory information.
func (n *node) setUse(u probe.Use) {
	for i := range n.Devices {
		d := &n.Devices[i]
		switch {
		case d.UUID != u.UUID:
		case u.Lost && d.Lost == "":
			d.State, d.Lost = "lost", u.Error
		case u.Error == "":
			if d.Busy = u.Busy; u.Total > 0 {
				d.MemoryUsed = &u.Memory
			}
		}
	}
}
