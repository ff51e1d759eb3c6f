package wrapper

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-gpu/berth/hook/message"
	"github.com/berth-gpu/berth/internal/runtimelog"
)

// podmanLog is the file name of the log that podman gives a runtime. podman puts the
// runtime's name before the message that it reads there.
const podmanLog = "oci-log"

// reportError reports an error to the engine, in the ways in which engines look for it:
// the log file holds this one line and nothing else, and stderr has the same.
//
// docker and ctr read the log's last line of level error. podman wants the log to be
// exactly one JSON object. An engine that gives no log reads stderr.
func reportError(stderr io.Writer, c call, err error) {
	text := "berth: " + message.OneLine(err.Error())
	logged := text
	if filepath.Base(c.log) == podmanLog {
		logged = strings.TrimPrefix(text, "berth: ")
	}
	line := runtimelog.FormatError(c.logFormat, logged, time.Now())
	path, ok := logFile(c.log)
	if ok && os.WriteFile(path, []byte(line), 0o644) == nil || c.logFormat != "json" {
		line = text + "\n"
	}
	_, _ = io.WriteString(stderr, line) // there is nowhere else to report to
}

// logFile returns the path in the value of --log. ok is false where crun's prefixes name
// no file.
func logFile(log string) (path string, ok bool) {
	for _, sink := range []string{"syslog:", "journald:"} {
		if strings.HasPrefix(log, sink) {
			return "", false
		}
	}
	path = strings.TrimPrefix(log, "file:")
	return path, path != ""
}
