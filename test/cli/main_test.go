// Package cli holds black-box tests of the berth command on simulated nodes: its output, its exit
// codes, and what it leaves behind.
//
// Each test makes the nodes that it needs (node_test.go). The test binary also is the first process
// of a node, and the program that changes the node's state.
package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// part is the environment variable that names the part of the test binary.
const part = "BERTH_CLI_TEST_PART"

// programs is the directory of the programs under test, as built by TestMain.
var programs string

func TestMain(m *testing.M) {
	if was, err := sim.Loader(os.Args); was {
		exitWith(err)
	}
	switch words := strings.Fields(os.Getenv(part)); {
	case len(words) == 0:
	case words[0] == "enter":
		exitWith(enterNode(words[1:]))
	case words[0] == "keep":
		exitWith(holdNode())
	case words[0] == "control":
		exitWith(sim.Control(words[1:]...))
	}
	os.Exit(run(m))
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cli test:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(m *testing.M) int {
	flag.Parse()
	if missing := missingTools(); missing != "" {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			fmt.Println("FAIL: needs", missing)
			return 1
		}
		fmt.Println("SKIP: needs", missing)
		return 0
	}
	dir, err := os.MkdirTemp("", "berth-cli-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(dir)
	}
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	programs = dir
	return m.Run()
}

// missingTools names what is missing on this machine for the tests.
func missingTools() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, name := range []string{"cc", "nsenter", "setpriv", "unshare", "runc"} {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	if _, err := os.Stat(image()); err != nil {
		return image() + " (make image)"
	}
	return ""
}

// build builds the programs. Those of users other than root have to reach them too.
func build(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	return testutil.BuildPrograms(dir, "berth", "berth-nvml", "berth-runtime", "berth-hook", "berth-monitor")
}

// image is a small image, debian a large one; `make image` makes them.
func image() string  { return cached("busybox") }
func debian() string { return cached("debian") }

func cached(name string) string {
	path, err := filepath.Abs("../../.cache/image/" + name)
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

// enterNode becomes the first process of a node. Its arguments are the profile and the options, each as
// in sim.Options, "-" for its zero value.
func enterNode(words []string) error {
	word := func(i int) string { return strings.TrimPrefix(words[i], "-") }
	o := sim.Options{Cgroup: word(1), DriverRoot: word(2), BareNodes: word(3) != "", NoUVM: word(3) != ""}
	if o.Cgroup == "v2" {
		// The cgroup that the test made for this node is then the root of all that
		// the node sees.
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("make cgroup namespace: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Setenv(part, "keep"); err != nil {
		return err
	}
	return sim.Exec(word(0), o, []string{self}, os.Environ())
}

// holdNode holds a node until the test closes the other end of standard input, or dies.
func holdNode() error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
