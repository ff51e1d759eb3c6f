package runtimestate

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNote(t *testing.T) {
	links, root := filepath.Join(t.TempDir(), "data/roots"), t.TempDir()
	for _, path := range []string{root, root + "/", "/run/runc", "/run/docker/runtime-runc/moby", "/var/run/docker/runtime-runc/moby"} {
		if err := Note(links, path); err != nil {
			t.Fatal(err)
		}
	}
	if noted, err := os.ReadDir(links); len(noted) != 1 || err != nil {
		t.Errorf("%v, %v", noted, err)
	}
	if all := Roots(links); !slices.Contains(all, root) {
		t.Errorf("%q", all)
	}
}

// A directory that is gone is forgotten after a day: a runtime makes it after it was noted.
func TestForgotten(t *testing.T) {
	links, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
	if err := Note(links, root); err != nil {
		t.Fatal(err)
	}
	expect := func(what string, want int) {
		t.Helper()
		if all := Roots(links); slices.Contains(all, root) {
			t.Errorf("%s: %q", what, all)
		}
		if noted, err := os.ReadDir(links); len(noted) != want || err != nil {
			t.Errorf("%s: %v, %v", what, noted, err)
		}
	}
	expect("not made yet", 1)
	noted, err := os.ReadDir(links)
	if err != nil {
		t.Fatal(err)
	}
	old := unix.NsecToTimeval(time.Now().Add(-25 * time.Hour).UnixNano())
	if err := unix.Lutimes(filepath.Join(links, noted[0].Name()), []unix.Timeval{old, old}); err != nil {
		t.Fatal(err)
	}
	expect("gone for a day", 0)
}
