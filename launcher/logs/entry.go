package logs

import (
	"bytes"
	"errors"
	"time"
)

// Entry is one line of a log.
type Entry struct {
	Time   time.Time
	Stream Stream
	// Partial means that the task's line continues in the stream's next entry.
	Partial bool
	Text    []byte
}

var errNoEntry = errors.New("not an entry of a log")

// ParseEntry parses a line of a log, without the newline. Text is a slice of line.
func ParseEntry(line []byte) (Entry, error) {
	at, rest, ok1 := bytes.Cut(line, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tag, text, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !ok3 {
		return Entry{}, errNoEntry
	}
	e := Entry{Text: text}
	switch string(stream) {
	case "stdout":
		e.Stream = Stdout
	case "stderr":
		e.Stream = Stderr
	default:
		return Entry{}, errNoEntry
	}
	// Later formats may add tags, separated by colons.
	switch first, _, _ := bytes.Cut(tag, []byte(":")); string(first) {
	case "F":
	case "P":
		e.Partial = true
	default:
		return Entry{}, errNoEntry
	}
	var err error
	if e.Time, err = time.Parse(time.RFC3339Nano, string(at)); err != nil {
		return Entry{}, errNoEntry
	}
	return e, nil
}
