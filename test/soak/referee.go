package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
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
		err := held.lock(s.path("referee", d.UUID), unix.LOCK_EX)
		if err == nil && d.Parent != "" {
			err = held.lock(s.path("referee", d.Parent), unix.LOCK_SH)
		}
		if err != nil {
			return nil, errors.Join(err, held.drop())
		}
	}
	return held, nil
}

type locks []*os.File

func (l *locks) lock(path string, how int) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	*l = append(*l, f)
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: %s has another living holder", errDouble, path)
	}
	return err
}

func (l locks) drop() error {
	var errs []error
	for _, f := range l {
		errs = append(errs, unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
	}
	return errors.Join(errs...)
}
