// Package rig lets a black-box test run the programs as built on several
// simulated nodes at once. The test itself stays outside; each node is a process
// whose namespaces commands are started in. /tmp is the same on both sides.
//
// A node ends with the test binary, however that ends.
package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// nodeVariable tells the test binary, if it is started again, which node it shall become.
const nodeVariable = "BERTH_TEST_RIG"

// Rig has what the tests of one binary share.
type Rig struct {
	// Dir is a directory for all files that several tests use. It is removed in the end.
	Dir string
	// Berth and Runtime are the programs under test, built as make builds them.
	Berth, Runtime string
	nodes          []*Node
	watched        sync.Once

	sharing sync.Mutex
	shared  map[string]*Node // see Once
}

// Main builds the programs (see testutil.BuildPrograms) and runs the tests: call it from TestMain. It doesn't
// return. setup is done once, before the first test. Without root no test runs,
// which is a failure if BERTH_TEST_ROOT=1, and is said otherwise.
func Main(m interface{ Run() int }, setup func(*Rig) error) {
	if was, err := sim.Loader(os.Args); was {
		exit(0, err)
	}
	if words := strings.Fields(os.Getenv(nodeVariable)); len(words) == 2 {
		exit(1, sim.Exec(words[0], sim.Options{Cgroup: words[1], Driver: "stub"}, []string{"cat"}, os.Environ()))
	}
	if os.Geteuid() != 0 && os.Getenv("BERTH_TEST_ROOT") != "1" {
		fmt.Println("SKIP: needs root for simulated nodes")
		os.Exit(0)
	}
	code, err := run(m, setup)
	exit(code, err)
}

func exit(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m interface{ Run() int }, setup func(*Rig) error) (code int, err error) {
	dir, err := os.MkdirTemp("", "berth-rig-")
	if err != nil {
		return 1, err
	}
	r := &Rig{Dir: dir, Berth: filepath.Join(dir, "berth"), Runtime: filepath.Join(dir, "berth-runtime")}
	defer func() { err = errors.Join(err, r.end()) }()
	if err := testutil.BuildPrograms(dir, "berth", "berth-nvml", "berth-runtime", "berth-hook", "berth-monitor", "berth-broker", "berth-containerd"); err != nil {
		return 1, err
	}
	if err := setup(r); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// watch reads every source file, so that go test knows on which files a result depends, because it
// doesn't see what is built here. It has to be called by a test, not before them. Tests run in
// their package's directory, which is test/NAME.
func watch() error {
	return filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == ".cache" || e.Name() == "docs" || e.Name() == "packaging"):
			return filepath.SkipDir
		case e.Type().IsRegular() && slices.Contains([]string{".go", ".s", ".c", ".h", ".mod"}, filepath.Ext(path)):
			return touch(path)
		}
		return nil
	})
}

func touch(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // an editor's temporary file
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Compile makes a C program in Dir and returns its path.
func (r *Rig) Compile(name, source string, flags ...string) (string, error) {
	out := filepath.Join(r.Dir, name)
	return out, command("cc", append([]string{"-O1", "-Wall", "-Werror", "-o", out, source}, flags...)...)
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func (r *Rig) end() (err error) {
	for _, n := range r.nodes {
		err = errors.Join(err, n.stop())
	}
	return errors.Join(err, os.RemoveAll(r.Dir))
}
