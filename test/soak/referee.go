package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/lock"
)

// errDouble is what must never happen.
var errDouble = errors.New("DOUBLE GRANT")

// hold locks the files of what was granted: a device's own for itself alone, and
// that of a slice's GPU together with the other slices. The kernel drops the locks
// when the process that holds the files is dead, and no earlier. Nobody waits: a
// file that is locked means that the device has another living holder.
func (s scene) hold(devices []gpu.Device) (locks, error) {
	var held locks
	for _, d := range devices {
		err := held.lock(s.path("referee", d.UUID), lock.Exclusive)
		if err == nil && d.Parent != "" {
			err = held.lock(s.path("referee", d.Parent), lock.Shared)
		}
		if err != nil {
			return nil, errors.Join(err, held.drop())
		}
	}
	return held, nil
}

type locks []*os.File

func (l *locks) lock(path string, m lock.Mode) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	*l = append(*l, f)
	err = lock.TryAcquire(int(f.Fd()), m)
	if errors.Is(err, lock.ErrBusy) {
		return fmt.Errorf("%w: %s has another living holder", errDouble, path)
	}
	return err
}

func (l locks) drop() error {
	var errs []error
	for _, f := range l {
		errs = append(errs, lock.Release(int(f.Fd())), f.Close())
	}
	return errors.Join(errs...)
}
