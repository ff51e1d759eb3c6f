//go:build amd64 || arm64

package main

import "github.com/berth-gpu/berth/hook/wrapper"

// Filled in by entry, before the first instruction of Go's runtime, if the
// program was linked with -E main.entry; all zero otherwise. In the kernel's
// layout: action is a struct sigaction, of which the first word is the handler.
var (
	known, ignored, blocked, closed uint64
	action                          [4]uint64
)

func entry()

func inherited() wrapper.Inherited {
	return wrapper.Inherited{Known: known == 1, Ignored: ignored, Blocked: blocked, Closed: closed}
}
