package output

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// FormatStatus prints the state of a task and its age, in the form of docker ps.
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

// CutRight cuts an untrusted text to one line of at most most runes. Control characters become blanks, because a
// terminal obeys them.
func CutRight(text string, most int) string {
	runes := []rune(MakePrintable(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// CutLeft is CutRight, but keeps the end, which is the significant part of paths and references.
func CutLeft(text string, most int) string {
	runes := []rune(MakePrintable(text))
	if len(runes) <= most {
		return string(runes)
	}
	return "…" + string(runes[len(runes)-most+1:])
}

// MakePrintable replaces control characters by blanks.
func MakePrintable(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
