//go:build amd64 || arm64

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What entry has widened is for nobody but us: the real runtime finds the timer
// slack that the engine gave.
func TestTimerSlackIsHandedOn(t *testing.T) {
	dir := t.TempDir()
	program, config, real := filepath.Join(dir, "berth-runtime"), filepath.Join(dir, "config.toml"), filepath.Join(dir, "real")
	build := exec.Command("go", "build", "-ldflags", "-E main.entry", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path, text := range map[string]string{
		config: "runtime = \"" + real + "\"\n",
		real:   "#!/bin/sh\nread slack </proc/$$/timerslack_ns && echo $slack\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	const given = "77000"
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 77000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "state", "x")
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+config)
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != given {
		t.Errorf("got %q, %v; want %s", got, err, given)
	}
}

// Who starts us without an environment has the real runtime get none.
func TestEmptyEnvironment(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^TestNoEntries$", "-test.v")
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "entries: 0") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNoEntries counts for TestEmptyEnvironment.
func TestNoEntries(t *testing.T) { t.Logf("entries: %d", len(environment())) }
