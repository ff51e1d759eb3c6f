// Package testutil has what unit tests of several packages need. Black-box tests have
// test/rig.
package testutil

import (
	"os"
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
