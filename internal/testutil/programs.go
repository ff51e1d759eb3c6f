package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildPrograms puts programs of cmd into a directory. With BERTH_TEST_BIN they are copied from that directory, in which
// make has just built them. Without it, as in a plain go test, they are compiled.
func BuildPrograms(dir string, names ...string) error {
	for _, name := range names {
		if err := buildProgram(filepath.Join(dir, name), name); err != nil {
			return err
		}
	}
	return nil
}

func buildProgram(path, name string) error {
	if bin := os.Getenv("BERTH_TEST_BIN"); bin != "" {
		// Not written by this process: a child that another test forks meanwhile would hold the file open, and to execute
		// it would fail with ETXTBSY.
		return run(exec.Command("cp", filepath.Join(bin, name), path))
	}
	build := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/berth-gpu/berth/cmd/"+name)
	if name != "berth-nvml" { // the only one with C
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	return run(build)
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}
