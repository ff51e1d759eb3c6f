// Package process names a process for good: a pid alone can be reused, a pid and the
// time at which the process started can't.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// maxStat is more than /proc/PID/stat ever has.
const maxStat = 4 << 10

// Start is when the process started, in clock ticks since the boot, read from procfs
// mounted at proc. The error Is fs.ErrNotExist if there is no such process.
// Source: proc_pid_stat(5), field 22.
func Start(proc string, pid int) (ticks uint64, err error) {
	path := proc + "/" + strconv.Itoa(pid) + "/stat"
	data, err := smallfile.Read(path, maxStat)
	if err != nil {
		return 0, err
	}
	// The name before the third field can hold anything, ")" too.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("read %s: %w", path, errors.New("too few fields"))
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return ticks, nil
}

// HostRoot says whether this process is root of the machine, by procfs mounted at proc:
// root of a user namespace has no say over the machine's devices and cgroups.
func HostRoot(proc string) (bool, error) {
	ids, err := smallfile.Read(proc+"/self/uid_map", maxStat)
	return os.Geteuid() == 0 && wholeMap(string(ids)), err
}

// wholeMap says that each user is itself, as outside of all user namespaces.
func wholeMap(ids string) bool {
	return slices.Equal(strings.Fields(ids), []string{"0", "0", "4294967295"})
}
