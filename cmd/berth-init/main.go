// Command berth-init is the first process of a task that was started with --init:
// it runs the task's command, passes signals on to it, reaps whatever processes the
// command leaves behind, and ends with the command's exit code.
//
// It is run as "/dev/init -- COMMAND ARG…" inside a container and is nothing for
// people. The kernel starts it at an entry of its own (linker flag -E), and it never
// comes to Go's runtime. The first process of a PID namespace has no default actions:
// what comes before a program listens is lost, and Go's runtime, which unblocks signals
// a while before main can ask for them, would lose some, or end by them. Here they are
// blocked from the first instruction, and fetched one by one. A task pays a few pages
// for it.
//
// So the functions of this package have no heap, no scheduler and no g: they are
// //go:nosplit and call nothing outside of it, no index is out of range, and no pointer
// is written to memory.
package main

import "os"

func main() {
	_, _ = os.Stderr.WriteString("berth-init: built without its entry: -ldflags '-E main.entry' is missing\n") // there is nobody else to tell
	os.Exit(codeOwn)
}

// What this program itself may end with, as runtimes and shells do.
const (
	codeOwn       = 125
	codeUnusable  = 126
	codeNotFound  = 127
	codeSignalled = 128
)
