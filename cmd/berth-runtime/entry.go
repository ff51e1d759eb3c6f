//go:build amd64 || arm64

package main

import "github.com/berth-gpu/berth/hook/wrapper"

// Filled in by entry, before the first instruction of Go's runtime, if the
// program was linked with -E main.entry; all zero otherwise. In the kernel's
// layout: action is a struct sigaction, of which the first word is the handler.
//
//nolint:gochecknoglobals,unused // there is no other place to put it before there is a stack of Go's
var (
	known, ignored, blocked, closed uint64
	action                          [4]uint64
)

func entry() //nolint:unused // by the linker alone

func inherited() wrapper.Inherited {
	return wrapper.Inherited{Known: known == 1, Ignored: ignored, Blocked: blocked, Closed: closed}
}
