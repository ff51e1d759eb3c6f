package monitor

import (
	"fmt"
	"os"
	"time"
)

// maxOwnLog bounds a monitor's own log in bytes: a task may be started again for years, and fail
// each time.
const maxOwnLog = 1 << 20

// logOwn writes an error to the monitor's own log, which is open for appending. A log that is
// full begins anew.
func logOwn(log *os.File, err error) {
	if fi, e := log.Stat(); e == nil && fi.Mode().IsRegular() && fi.Size() >= maxOwnLog {
		_ = log.Truncate(0) // then it grows on
	}
	fmt.Fprintf(log, "%s %v\n", time.Now().UTC().Format(time.RFC3339), err)
}
