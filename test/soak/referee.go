package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/lock"
)

// errDouble: two live holders have one device, which must never happen.
var errDouble = errors.New("DOUBLE GRANT")

// hold locks the files of the granted devices: that of a device exclusively, and that of a slice's
// GPU shared with the other slices. The kernel releases the locks when the process that has the
// files open is dead, and no earlier. Nothing waits: a locked file means that the device has
// another live holder.
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
