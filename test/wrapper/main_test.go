// Package wrapper holds black-box tests of berth-runtime: the program as built, with a runtime that
// prints how it was started, and with real runc and crun, on a simulated node.
package wrapper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/simnode/sim"

	// Programs are built here from these sources; go test must not use cached results of other
	// ones.
	_ "github.com/berth-gpu/berth"
	_ "github.com/berth-gpu/berth/hook/wrapper"
)

func TestMain(m *testing.M) {
	sim.Main(cleaner{m}, "dgx-h100", sim.Options{Cgroup: "v2", Driver: "stub"})
}

// cleaner removes what was built when the tests have run.
type cleaner struct{ m *testing.M }

func (c cleaner) Run() int {
	var err error
	if dir, err = os.MkdirTemp("", "berth-wrapper-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := c.m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// dir holds what was built.
var dir string

// programsUnderTest are the programs under test.
type programsUnderTest struct {
	wrapper, mirror, launcher string
}

var build = sync.OnceValues(func() (programsUnderTest, error) {
	if err := touch("../../cmd/berth-runtime/*.go", "../../cmd/berth/*.go", "../../cmd/berth/*/*.go", "testdata/*"); err != nil {
		return programsUnderTest{}, err
	}
	b := programsUnderTest{wrapper: dir + "/berth-runtime", mirror: dir + "/mirror", launcher: dir + "/launcher"}
	return b, errors.Join(
		testutil.BuildPrograms(dir, "berth-runtime"),
		command("cc -O1 -o "+b.mirror+" testdata/mirror.c"),
		os.Symlink("mirror", b.launcher),
	)
})

// touch reads files, so that go test knows that the result depends on them.
func touch(patterns ...string) error {
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// berth is the command, beside the wrapper that looks for it there.
var buildBerth = sync.OnceValues(func() (string, error) {
	return dir + "/berth", testutil.BuildPrograms(dir, "berth", "berth-nvml", "berth-hook")
})

func command(line string) error {
	f := strings.Fields(line)
	if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	return nil
}

func programs(t *testing.T) programsUnderTest {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// configure writes a configuration for the real runtime and returns its path.
func configure(t *testing.T, runtime, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("runtime = '"+runtime+"'\n"+more), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
