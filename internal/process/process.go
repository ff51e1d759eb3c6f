// Package process names a process for good: a pid alone can be reused, a pid and the
// time at which the process started can't.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

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
