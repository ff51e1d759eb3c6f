// Package berth gives containerised tasks GPUs of their own. It is the page where
// the stages meet, and the Go API for job runners:
//
//	discover → request → match → lease → edits → spec → run → release
//
// [Open] gives a [Node]; [Node.Acquire] leases devices, [Node.Prepare] changes the
// OCI spec of the container that is to use them, and [Node.Release] gives them
// back. A lease needs no keeper: when its holder's processes are gone, the next
// Acquire on the machine frees it, whatever happened to whoever took it.
//
// The package needs neither cgo nor a daemon. What it doesn't do: run containers
// (package launcher does), or talk to NVML (the berth command does).
package berth
