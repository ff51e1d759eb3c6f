package netdev

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// RetryDump calls a list function of the netlink library again as long as the kernel says
// that the list changed while it was read. After many tries it returns the library's error.
func RetryDump[T any](list func() ([]T, error)) (all []T, err error) {
	const attempts, pause = 100, 100 * time.Microsecond
	for i := range time.Duration(attempts) {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		time.Sleep(i * pause)
	}
	return all, err
}
