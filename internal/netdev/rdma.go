package netdev

import "github.com/berth-gpu/berth/internal/rdma"

// TakeRDMA moves RDMA devices from the caller's network namespace into this one, all or
// none, where the kernel has each in one alone. undo brings them back.
func (n *Namespace) TakeRDMA(names []string) (undo func() error, err error) {
	return rdma.Take(n.own, n.file, names)
}
