package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
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
			err := run(t.Context(), strings.Fields(tt.args), strings.NewReader(tt.state), io.Discard)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}
