package wrapper

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	// RequestAnnotation carries a request: docker run --annotation berth.gpus=2.
	RequestAnnotation = entry.Annotation
	// LeaseAnnotation is in a spec that berth has prepared for a lease.
	LeaseAnnotation = "dev.berth.lease"
	// outerAnnotation names the outer cgroup that berth made for a container.
	outerAnnotation = "dev.berth.cgroup"
)

// reserved is the lease that podman's precreate hook has taken for this container, nil
// if there is none. Its entry in the spec, which no image can write, binds the lease.
func (n *creation) reserved(spec *specs.Spec) (*ledger.Lease, error) {
	id := entry.Bound(spec)
	if id == "" {
		return nil, nil
	}
	leases, err := n.node.Leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		theirs := l.Owner.RuntimeRoot != "" || l.Owner.Container != "" && l.Owner.Container != n.id
		if l.ID == id && l.State == ledger.Reserved && l.Making && !theirs {
			return &l.Lease, nil
		}
	}
	return nil, fmt.Errorf("lease %s, which a hook is to bind container %s to, isn't kept for it", id, n.id)
}
