package rig

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// MakeImages makes the OCI layouts that ImagePath returns, unless they are there. Tests run in a
// folder of test.
func MakeImages() error {
	if out, err := exec.Command("../image/make.sh").CombinedOutput(); err != nil {
		return fmt.Errorf("make images: %w: %s", err, out)
	}
	return nil
}

// ImagePath returns the path of an OCI layout: "busybox", or "debian", which has glibc.
func ImagePath(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../.cache/image/" + name)
	Must(t, err)
	return path
}
