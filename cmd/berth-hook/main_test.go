package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestCalledAsNVIDIAHook: called by the name of NVIDIA's hook, the program fails with one line,
// whatever its arguments are.
func TestCalledAsNVIDIAHook(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, testutil.BuildPrograms(dir, "berth-hook"))
	hook := filepath.Join(dir, "berth-hook")
	link := filepath.Join(t.TempDir(), "nvidia-container-runtime-hook")
	copied := filepath.Join(t.TempDir(), "nvidia-container-toolkit")
	program, err := os.ReadFile(hook)
	if err := errors.Join(err, os.Symlink(hook, link), os.WriteFile(copied, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path string
		args       []string
		stands     bool
	}{
		{"by a link", link, []string{link, "prestart"}, true},
		{"by a link, with the name alone", link, []string{"nvidia-container-runtime-hook", "prestart"}, true},
		{"as a copy with another word", copied, []string{"x", "--help"}, true},
		{"as itself", hook, []string{hook, "--help"}, false},
		{"as itself by a link with its own word", link, []string{"berth-hook", "--help"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			cmd := exec.Cmd{Path: tt.path, Args: tt.args, Stderr: &stderr}
			err := cmd.Run()
			said := stderr.String()
			if tt.stands != (err != nil) || tt.stands && (cmd.ProcessState.ExitCode() != 1 || strings.Count(said, "\n") != 1 || !strings.Contains(said, "add --runtime berth")) {
				t.Errorf("%v: %s", err, said)
			}
		})
	}
}

func TestRunHook(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(config, []byte("state = '"+t.TempDir()+"'\ndata = '"+t.TempDir()+"'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const stopped = `{"ociVersion":"1.0.2","id":"c1","status":"stopped","bundle":"/b"}`
	tests := []struct{ name, args, state, err string }{
		{"nothing held", "--config " + config + " poststop", stopped, ""},
		{"help", "--help", stopped, ""},
		{"no stage", "", stopped, "usage: berth-hook"},
		{"unknown stage", "--config " + config + " later", stopped, `unknown stage "later"`},
		{"unknown word", "createRuntime --gpus 2", stopped, `unknown word "--gpus"`},
		{"no value", "prestart --request", stopped, `"--request" stands alone`},
		{"precreate with an unknown word", "precreate --gpus 2", stopped, `unknown word "--gpus"`},
		{"bind what", "bind --lease", stopped, "usage: berth-hook"},
		{"mount what", "mount /a", stopped, "usage: berth-hook"},
		{"mount a relative path", "--config " + config + " mount a /b", stopped, "absolute paths"},
		{"mount too late", "--config " + config + " mount /a /b", stopped, "container c1 is stopped"},
		{"netdev what", "netdev enp1", stopped, "usage: berth-hook"},
		{"netdev and half a pair", "netdev enp1 eth1 enp2", stopped, "usage: berth-hook"},
		{"netdev of no name", "--config " + config + " netdev ../x eth1", stopped, "no interface can be called so"},
		{"netdev too late", "--config " + config + " netdev enp1 eth1", stopped, "container c1 is stopped"},
		{"more words", "poststop c1", stopped, "usage: berth-hook"},
		{"no state", "--config " + config + " poststop", "", "read container state"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := runHook(t.Context(), strings.Fields(tt.args), strings.NewReader(tt.state), io.Discard)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}
