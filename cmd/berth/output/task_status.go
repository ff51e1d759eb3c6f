package output

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// FormatStatus says what a task is doing in the manner of docker ps, and since when.
func FormatStatus(t tasks.Task, now time.Time) string {
	switch {
	case t.State == tasks.Running && t.Life != nil && !t.Life.Started.IsZero():
		text := "up " + FormatAge(t.Life.Started, now)
		if ends := t.Deadline(); !ends.IsZero() {
			text += ", ends in " + FormatAge(now, ends)
		}
		return text
	case t.State == tasks.Exited && t.Exit != nil && !t.Exit.Finished.IsZero():
		text := t.String() + " " + FormatAge(t.Exit.Finished, now) + " ago"
		switch {
		case t.Exit.Unknown:
			text += ", code unknown"
		case t.Exit.OOM:
			text += ", out of memory"
		case t.Exit.Error != "":
			text += ": " + CutRight(t.Exit.Error, 40)
		}
		return text
	case t.State == tasks.Restarting && t.Life != nil && t.Life.Ended != nil:
		return fmt.Sprintf("restarting (%d) %s ago", t.Life.Ended.Code, FormatAge(t.Life.Ended.Finished, now))
	case t.State == tasks.Waiting:
		return "waiting " + FormatAge(t.Created, now)
	case t.State == tasks.Lost && t.Why != "":
		return "lost: " + t.Why
	}
	return t.String()
}

// CutRight cuts a text of strangers to one line of a table: control characters become blanks, for a
// terminal obeys them.
func CutRight(text string, most int) string {
	runes := []rune(MakePrintable(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// CutLeft is CutRight, but keeps the end, where paths and references say the most.
func CutLeft(text string, most int) string {
	runes := []rune(MakePrintable(text))
	if len(runes) <= most {
		return string(runes)
	}
	return "…" + string(runes[len(runes)-most+1:])
}

// MakePrintable replaces characters that a terminal would obey by blanks.
func MakePrintable(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
