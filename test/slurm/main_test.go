// Package slurm runs berth in jobs of a real Slurm: ranks that srun starts share a lease, batch scripts as the guide shows them, and what the end of a
// job, in all ways, does to them. Package cluster starts Slurm.
//
// It needs packages from Debian: make test-slurm runs it.
package slurm

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// asked is set by make test-slurm.
const asked = "BERTH_TEST_ENGINES"

var suite = flag.String("slurm.suite", "trixie", "the Debian suite that Slurm comes from")

var shared *rig.Rig

func TestMain(m *testing.M) {
	if flag.Parse(); os.Getenv(asked) != "1" {
		os.Exit(m.Run()) // each test says that it is skipped
	}
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		rack.Sweep()
		if err := os.Chmod(r.Dir, 0o755); err != nil { // users read files there
			return err
		}
		return rack.Simnode(filepath.Join(r.Dir, "simnode"))
	})
}
