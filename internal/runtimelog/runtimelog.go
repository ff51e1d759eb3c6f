// Package runtimelog reads and writes the log of an OCI runtime: the file that an
// engine names with --log, in the format that it chooses with --log-format.
//
// runc and crun write the same two formats: "json", one JSON object per line with the
// members level, msg and time, and "text", logrus' key=value lines. A runtime's last
// entry of level error is why it failed; docker, containerd and podman show that one to
// their user.
package runtimelog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

type entry struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
	Time  string `json:"time"`
}

// LastError returns the message of the last entry of level error in a log of format
// "json", with all white space folded to single spaces. It returns "" if the file
// cannot be read or has no such entry; lines that are not JSON are skipped.
func LastError(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		var e entry
		if json.Unmarshal(line, &e) == nil && e.Level == "error" {
			last = e.Msg
		}
	}
	return strings.Join(strings.Fields(last), " ")
}

// FormatError returns a line of level error, its newline included. Every format but
// "json" is written as text, as runc and crun do.
func FormatError(format, message string, now time.Time) string {
	stamp := now.UTC().Format(time.RFC3339)
	if format != "json" {
		return fmt.Sprintf("time=%q level=error msg=%q\n", stamp, message)
	}
	line, err := json.Marshal(entry{"error", message, stamp})
	if err != nil {
		return "" // strings always marshal
	}
	return string(line) + "\n"
}
