//go:build amd64 || arm64

package main

import (
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/early"
	"github.com/berth-gpu/berth/hook/wrapper"
)

// Filled in by entry, before the first instruction of Go's runtime, if the
// program was linked with -E main.entry; all zero otherwise. In the kernel's
// layout: action is a struct sigaction, of which the first word is the handler.
//
//nolint:gochecknoglobals,unused // there is no other place to put it before there is a stack of Go's
var (
	known, ignored, blocked, closed, slack uint64
	action                                 [4]uint64
)

func entry() //nolint:unused // by the linker alone

// What entry calls before all else, and what is there for g and its like meanwhile.
//
//nolint:gochecknoglobals,unused // by entry alone
var (
	begin  = early.Begin
	alone  = early.Alone
	thread [128]byte
)

// load reads the configuration. If entry has missed a note of the runtime that it
// names, there is one afterwards, unless it may not be written: then calls only take
// longer.
func load(path string) (berth.Config, error) {
	looked := early.Look()
	c, err := berth.LoadConfig(path)
	if looked != nil && err == nil && path == berth.ConfigPath && c.State == early.State {
		_ = looked.Note(c.Runtime)
	}
	return c, err
}

// tightTimers gives this thread, and with it every process that comes of it, the
// timer slack back that entry has widened. The one thread that Go's runtime has
// started by then keeps the wide one: it does nothing but look, up to 50,000 times
// a second, whether other threads of ours need help. A process that lives for two
// milliseconds on its main thread needs none, and in a rush of many of them their
// watchers would take half of the machine's time.
func tightTimers() {
	if slack != 0 {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) // the kernel gave this value
	}
}

func inherited() wrapper.Inherited {
	return wrapper.Inherited{Known: known == 1, Ignored: ignored, Blocked: blocked, Closed: closed}
}

// begun is the delete that Begin has started, nil if there is none.
func begun() *wrapper.Begun {
	d := early.Begun()
	if d == nil {
		return nil
	}
	return &wrapper.Begun{PID: d.PID, Path: d.Program, State: d.State, Known: d.Known}
}
