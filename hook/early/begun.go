//go:build amd64 || arm64

package early

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// Delete is one that the real runtime is at already, as a child of this process that
// dies with it. Everything it says is from before the child was started.
type Delete struct {
	PID     int
	Program string
	State   []byte // the file in which the runtime keeps what it knows of the container
	ledger  []byte
}

// Begun returns the delete that Begin has started, nil if there is none. It has to be
// waited for.
func Begun() *Delete {
	if work.child == 0 {
		return nil
	}
	return &Delete{
		PID: work.child, Program: unix.ByteSliceToString(work.program.text[:]),
		State: work.data[:work.size], ledger: work.ledger[:work.leases],
	}
}

// Known says that the ledger had a lease of that id: one that it hadn't belongs to a
// later life of the container.
func (d *Delete) Known(lease string) bool {
	return lease != "" && bytes.Contains(d.ledger, []byte(`"`+lease+`"`))
}
