package verb

import (
	"fmt"

	"github.com/berth-gpu/berth/launcher/supervise"
)

// Exit codes of berth itself. Those that the record of a task can have are defined in package
// supervise. The table of exit codes is part of the help and the man page.
const (
	ExitFailure  = 1 // berth could not do what was asked
	ExitUsage    = 2 // the command line is wrong
	ExitBusy     = supervise.CodeBusy
	ExitBerth    = supervise.CodeFailed
	ExitNoExec   = supervise.CodeCantInvoke
	ExitNotFound = supervise.CodeNotFound
)

// exitCode is one line of the table.
type exitCode struct {
	Code int
	Text string
}

// ExitCodes returns the table.
func ExitCodes() []exitCode {
	return []exitCode{
		{0, "success"},
		{ExitFailure, "failure"},
		{ExitUsage, "wrong usage (125 of run, exec and alloc)"},
		{ExitBusy, "the devices are busy (no --wait, or it timed out)"},
		{ExitBerth, "run, exec, alloc: berth failed before the command started"},
		{ExitNoExec, "run, exec, alloc: the command can't be executed"},
		{ExitNotFound, "run, exec, alloc: there is no such command"},
	}
}

// OwnCodes is the line below the table.
const OwnCodes = "Otherwise run, exec and alloc end with the command's own code, or 128 plus the signal's number."

// ExitTable returns the table as text for the help.
func ExitTable() string {
	text := "Exit codes:\n"
	for _, e := range ExitCodes() {
		text += fmt.Sprintf("  %-4d %s\n", e.Code, e.Text)
	}
	return text + OwnCodes
}
