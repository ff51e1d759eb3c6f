package username

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/testutil"
)

// fakeGetent puts a getent into PATH that knows the users from 70000 on, and returns how often it was run.
func fakeGetent(t *testing.T) (count func() int) {
	t.Helper()
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "getent"), []byte(`#!/bin/sh
		echo "$2" >>`+dir+`/runs
		[ "$2" -ge 70000 ] && echo "person$2:x:$2:$2::/:/bin/sh"`), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		runs, _ := os.ReadFile(filepath.Join(dir, "runs")) // none yet
		return strings.Count(string(runs), "\n")
	}
}

func TestFind(t *testing.T) {
	count := fakeGetent(t)
	for uid, want := range map[int]string{0: "root", 70001: "person70001", 60001: "60001"} {
		if got := Find(uid); got != want {
			t.Errorf("%d is %s, want %s", uid, got, want)
		}
	}
	if count() != 2 {
		t.Errorf("getent was run %d times", count())
	}
}

func TestFinder(t *testing.T) {
	count, finder := fakeGetent(t), Finder{}
	for range 3 {
		if got := finder.Find(70001); got != "person70001" {
			t.Error(got)
		}
	}
	if count() != 1 {
		t.Errorf("getent was run %d times", count())
	}
	finder.known[70001] = knownName{"before", time.Now().Add(-2 * keepFor)}
	if got := finder.Find(70001); got != "person70001" {
		t.Errorf("after a change: %s", got)
	}
	for i := range maxKnown {
		finder.known[i] = knownName{strconv.Itoa(i), time.Now()}
	}
	if finder.Find(70002); len(finder.known) != 1 {
		t.Errorf("%d names are kept", len(finder.known))
	}
}
