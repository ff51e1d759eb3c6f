package wrapper

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-gpu/berth/hook/say"
	"github.com/berth-gpu/berth/internal/runtimelog"
)

// podmanLog is the name of the log that podman gives a runtime. podman puts the runtime's
// name before what it reads there.
const podmanLog = "oci-log"

// reportError tells the engine what went wrong, in the way that all engines find it:
// the log file holds this one line and nothing else, and stderr says the same.
//
// docker and ctr take the log's last line of level error, podman wants the log to
// be exactly one JSON object, and an engine that has no log reads stderr.
func reportError(stderr io.Writer, c call, err error) {
	message := "berth: " + say.Line(err.Error())
	logged := message
	if filepath.Base(c.log) == podmanLog {
		logged = strings.TrimPrefix(message, "berth: ")
	}
	line := runtimelog.FormatError(c.logFormat, logged, time.Now())
	path, ok := logFile(c.log)
	if ok && os.WriteFile(path, []byte(line), 0o644) == nil || c.logFormat != "json" {
		line = message + "\n"
	}
	// Nobody is left to tell if stderr doesn't take it.
	_, _ = io.WriteString(stderr, line)
}

// logFile reads --log, for which crun has prefixes.
func logFile(log string) (path string, ok bool) {
	for _, sink := range []string{"syslog:", "journald:"} {
		if strings.HasPrefix(log, sink) {
			return "", false
		}
	}
	path = strings.TrimPrefix(log, "file:")
	return path, path != ""
}
