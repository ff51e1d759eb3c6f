package monitor

import (
	"fmt"
	"os"
	"time"
)

// maxOwnLog bounds a monitor's own log in bytes: a task may be restarted for years, with an error each
// time.
const maxOwnLog = 1 << 20

// logOwn appends an error to the monitor's own log. A log that has reached maxOwnLog is emptied first.
func logOwn(log *os.File, err error) {
	if fi, e := log.Stat(); e == nil && fi.Mode().IsRegular() && fi.Size() >= maxOwnLog {
		_ = log.Truncate(0) // on an error the log keeps growing
	}
	fmt.Fprintf(log, "%s %v\n", time.Now().UTC().Format(time.RFC3339), err)
}
