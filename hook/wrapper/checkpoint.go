package wrapper

import "fmt"

// checkpointContainer execs the real runtime's checkpoint, unless the container holds a
// lease. A checkpoint would have its open devices without their state, and a restored
// container would use them while they are another's.
func (o Options) checkpointContainer(c call, rt Runtime) error {
	node, err := o.Node()
	if err == nil {
		_, err = node.ReadLeases() // findHoldings takes a ledger that can't be read for an empty one
	}
	if err != nil {
		return fmt.Errorf("checkpoint container %s: find its lease: %w", c.id, err)
	}
	r := deletion{root: absolutePath(rt.stateDir(c)), id: c.id, rt: rt, node: node}
	r.findHoldings()
	r.close()
	if r.lease != nil {
		return fmt.Errorf("checkpoint container %s: it holds lease %s, and a checkpoint can't save the state of leased devices: stop it instead", c.id, r.lease.ID)
	}
	return o.execRealRuntime(rt)
}
