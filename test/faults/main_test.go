// Package faults holds black-box tests of faults from outside: clients, monitors and engines
// that are killed, disks that are full or read-only, state that is lost, devices that fail.
// docs/faults.md has a row for each.
package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		if out, err := exec.Command("../image/make.sh").CombinedOutput(); err != nil {
			return fmt.Errorf("make images: %w: %s", err, out)
		}
		return nil
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

// imagePath is the path of an OCI layout: "busybox", or "debian", which has glibc.
func imagePath(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../.cache/image/" + name)
	rig.Must(t, err)
	return path
}
