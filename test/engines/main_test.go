// Package engines holds black-box tests of berth in real container engines: docker,
// podman and containerd, with runc and crun, of two of Debian's suites.
//
// Each host of the tests is a simulated GPU server in namespaces of its own, whose
// root file system is that suite with the engines installed: tree.sh makes it, host.sh
// stands in it. Engines run there as they do on a server, by their own daemons, and
// all of it ends with the test binary, however that ends.
//
// It takes minutes the first time, and packages from Debian: make test-engines runs it.
package engines

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// asked is set by make test-engines.
const asked = "BERTH_TEST_ENGINES"

var (
	shared  *rig.Rig
	simnode string            // the program that makes a server of a host
	trees   map[string]string // root file systems by suite
	image   string            // of the containers: a directory
)

func TestMain(m *testing.M) {
	if os.Getenv(asked) != "1" {
		os.Exit(m.Run()) // each test says that it is skipped
	}
	rig.Main(ending{m}, func(r *rig.Rig) error {
		shared, trees = r, map[string]string{}
		rack.Sweep()
		for _, suite := range []string{"forky", "bookworm"} {
			tree, err := rack.Tree(suite)
			if err != nil {
				return err
			}
			trees[suite] = tree
		}
		simnode = filepath.Join(r.Dir, "simnode")
		return errors.Join(rack.Simnode(simnode), buildImage(r))
	})
}

// ending ends the hosts with the tests.
type ending struct{ m *testing.M }

func (e ending) Run() int {
	code := e.m.Run()
	for _, h := range hosts.started {
		if err := h.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "engines:", err)
			code = 1
		}
	}
	return code
}

// skipUnlessWanted skips a test unless engine tests were requested.
func skipUnlessWanted(t *testing.T) {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skip("needs engines: make test-engines")
	}
}

// buildImage makes the containers' image: the probe of the hook's tests, a program that waits, one
// that records what it can open, and nothing else.
func buildImage(r *rig.Rig) error {
	image = filepath.Join(r.Dir, "image")
	for _, dir := range []string{"dev", "proc", "sys", "etc", "tmp", "nodes", "claims"} {
		if err := os.MkdirAll(filepath.Join(image, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(image, "look"), []byte(probeCommands()), 0o644); err != nil {
		return err
	}
	_, err := r.Compile("image/probe", "../hook/testdata/probe.c", "-static")
	for _, name := range []string{"wait", "claim"} {
		if err == nil {
			_, err = r.Compile("image/"+name, "testdata/"+name+".c", "-static")
		}
	}
	if err == nil { // lifts device rules
		_, err = r.Compile("image/climb", "../devicerules/testdata/probe.c", "-static")
	}
	return err
}
