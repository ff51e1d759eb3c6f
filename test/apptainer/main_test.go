// Package apptainer compares berth's words of Apptainer (exec, run, shell) with Apptainer itself: each case is a script of a
// user without root, which is run with both programs on one simulated server, and what it prints, how it ends and which files
// it leaves are compared. testdata/apptainer.txt is what Apptainer does, and a change of it is a failure.
//
// The server's root file system is test/engines/tree.sh's users, which has Debian's Apptainer and the FUSE programs that
// it mounts images with. The images are built by Apptainer in the server.
//
// Beside, berth alloc runs Apptainer itself, charliecloud and bubblewrap there.
//
// It needs packages from Debian: make test-apptainer runs it.
package apptainer

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// asked is set by make test-apptainer.
const asked = "BERTH_TEST_ENGINES"

// runsInside is set if this program is to run inside the server: one script (see runScript), many tasks (see runTasks), or an
// empty registry at registryHost.
const runsInside = "BERTH_TEST_APPTAINER_INSIDE"

const registryHost = "127.0.0.1:5000"

// parallelUses are run at a time. Each takes one of the server's eight GPUs at most.
const parallelUses = 6

var update = flag.Bool("update", false, "write testdata")

var shared *rig.Rig

func TestMain(m *testing.M) {
	if was, err := sim.Loader(os.Args); was { // a part of a node, without this environment
		exitIf(err)
		os.Exit(0)
	}
	switch os.Getenv(runsInside) {
	case "registry":
		exitIf(http.ListenAndServe(registryHost, registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	case "script":
		exitIf(runScript(os.Stdin, os.Stdout))
		os.Exit(0)
	case "tasks":
		exitIf(runTasks(os.Stdin, os.Stdout))
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", strconv.Itoa(parallelUses)) // the flag exists
	if flag.Parse(); os.Getenv(asked) != "1" {
		os.Exit(m.Run()) // each test says that it is skipped
	}
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		rack.Sweep()
		if err := os.Chmod(r.Dir, 0o755); err != nil { // users read the images' sources there
			return err
		}
		return rack.Simnode(filepath.Join(r.Dir, "simnode"))
	})
}

func exitIf(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "apptainer:", err)
		os.Exit(1)
	}
}

// skipUnlessWanted skips a test unless engine tests were requested.
func skipUnlessWanted(t *testing.T) {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skip("needs Apptainer: make test-apptainer")
	}
}
