// Package faults holds black-box tests of faults from outside: clients, monitors and engines
// that are killed, disks that are full or read-only, state that is lost, devices that fail.
// docs/faults.md has a row for each.
package faults

import (
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		return rig.MakeImages()
	})
}

// server is a simulated server, and the runtime that its tasks are run with.
type server struct {
	*rig.Node
	runtime string
}

// startServer returns a server of that profile (see test/simnode) with cgroup "v1" or "v2".
func startServer(t *testing.T, profile, cgroup, runtime string) server {
	t.Helper()
	return server{shared.Shared(t, profile, cgroup), runtime}
}
