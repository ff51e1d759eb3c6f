// Package testutil has what unit tests of several packages need. Black-box tests have
// test/rig.
package testutil

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// NeedRoot skips the test if this process isn't root's. With BERTH_TEST_ROOT=1 the test
// fails instead.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("BERTH_TEST_ROOT") == "1" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

// DefinesTest says whether the tests of a folder below root have one of that name.
func DefinesTest(t testing.TB, root, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	Must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		Must(t, err)
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T) {") {
			return true
		}
	}
	return false
}
