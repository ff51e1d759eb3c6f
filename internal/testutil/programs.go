package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildPrograms puts programs of cmd into a directory. With BERTH_TEST_BIN they are copied from that directory, in which
// make has just built them. Without it they are compiled, as a plain go test needs it.
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
		program, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			return err
		}
		return os.WriteFile(path, program, 0o755)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/berth-gpu/berth/cmd/"+name)
	if name != "berth-nvml" { // the only one with C
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", build.Args, err, out)
	}
	return nil
}
