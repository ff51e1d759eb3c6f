package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/isolation/cgroup"
)

// TestEmptyEnvironment: a program that was started without an environment passes none to the real
// runtime.
func TestEmptyEnvironment(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^TestCountEnvironment$", "-test.v")
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "entries: 0") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCountEnvironment is run by TestEmptyEnvironment.
func TestCountEnvironment(t *testing.T) { t.Logf("entries: %d", len(readEnvironment())) }

// TestRuntimeFromBrokenConfiguration: calls for existing containers go to the configured runtime even
// if the configuration has an error elsewhere.
func TestRuntimeFromBrokenConfiguration(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         string // of the first runtime
		bad          bool
	}{
		{"no error", "runtime = '/opt/crun'\n", "/opt/crun", false},
		{"unknown key", "runtime = '/opt/crun'\nruntimes = 1\n", "/opt/crun", true},
		{"unfit value", "runtime = '/opt/crun'\n[policy]\nnics = 'mine'\n", "/opt/crun", true},
		{"malformed below", "runtime = '/opt/crun'\n[policy\n", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(tt.config), 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := (&settings{path: path}).listRuntimes()
			if (err != nil) != tt.bad {
				t.Errorf("error %v, want one: %t", err, tt.bad)
			}
			if tt.want != "" && (len(all) == 0 || all[0].Path != tt.want) {
				t.Errorf("got %v, want %s first", all, tt.want)
			}
		})
	}
}

// TestRuntimeOfHost: crun refuses a host with cgroups of both versions.
func TestRuntimeOfHost(t *testing.T) {
	hybrid := cgroup.Hierarchy{Version: cgroup.V1, Hybrid: true}
	for first, got := range map[string][]string{
		"runc": orderRuntimes(hybrid, nil),
		"crun": orderRuntimes(cgroup.Hierarchy{Version: cgroup.V1}, nil),
	} {
		if len(got) != 2 || got[0] != first {
			t.Errorf("%v, want %s first", got, first)
		}
	}
	if got := orderRuntimes(cgroup.Hierarchy{}, cgroup.ErrNone); got[0] != "crun" {
		t.Errorf("without cgroups: %v", got)
	}
}
