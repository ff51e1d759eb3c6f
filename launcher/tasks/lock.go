package tasks

import (
	"os"

	"github.com/berth-gpu/berth/internal/lock"
)

// Lock takes the lock of a task, which its launcher or monitor holds as long as it lives;
// it ends with the returned file, or with this process. The error Is [lock.ErrBusy] if
// another process has it.
func (s Store) Lock(id string) (*os.File, error) { return lock.TryOpen(s.Dir(id), lock.Exclusive) }
