package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Tick is the unit of start times: the kernel's USER_HZ is 100 on every architecture that Go knows.
const Tick = time.Second / 100

// BootOffset is what the time namespace of this process adds to CLOCK_BOOTTIME, and thereby to the start
// times in procfs. Source: time_namespaces(7).
type BootOffset time.Duration

// firstTimeNamespace is the machine's first time namespace, which has no offset: TIME_NS_INIT_INO of the kernel's
// linux/nsfs.h.
const firstTimeNamespace = "time:[4026531834]"

// ReadBootOffset reads the offset from procfs mounted at proc. It is 0 in the first time namespace and on kernels
// without time namespaces. The kernel shows the offsets of the namespace for children: it is an error if this process
// itself is in another one.
func ReadBootOffset(proc string) (BootOffset, error) {
	own, unknown := os.Readlink(proc + "/self/ns/time")
	if own == firstTimeNamespace {
		return 0, nil
	}
	path := proc + "/self/timens_offsets"
	text, err := smallfile.String(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	children, err := os.Readlink(proc + "/self/ns/time_for_children")
	if err := errors.Join(unknown, err); err != nil {
		// Not fs.ErrNotExist: it says nothing about the process that is asked for.
		return 0, fmt.Errorf("read the own time namespace: %v", err) //nolint:errorlint // see above
	}
	if own != children {
		return 0, errors.New("this process is about to enter another time namespace: start it with unshare --fork")
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "boottime" {
			continue
		}
		seconds, err := strconv.ParseInt(f[1], 10, 64)
		nanoseconds, err2 := strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(err, err2); err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		return BootOffset(time.Duration(seconds)*time.Second + time.Duration(nanoseconds)), nil
	}
	return 0, nil
}

// HostTicks turns a start time as this time namespace shows it into that of the host. It is an error where
// the kernel has rounded a part away: the offset has a fraction of a tick, or the process is older than
// the namespace's boot, which the kernel shows as a time in the far future.
func (o BootOffset) HostTicks(shown uint64) (uint64, error) {
	if o == 0 {
		return shown, nil
	}
	if time.Duration(o)%Tick != 0 || shown > 1<<62/uint64(Tick) {
		return 0, fmt.Errorf("the time namespace of this process, at boottime %+v, hides when processes started", time.Duration(o))
	}
	return shown - uint64(int64(time.Duration(o)/Tick)), nil
}

// HostUptime is the time since the host's boot, as CLOCK_BOOTTIME has it outside of time namespaces.
func (o BootOffset) HostUptime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("read CLOCK_BOOTTIME: %w", err)
	}
	return time.Duration(ts.Nano()) - time.Duration(o), nil
}
