package ociruntime

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDeleteWithoutRuntime(t *testing.T) {
	for _, tt := range []struct {
		name, runtime, spec string
		want                bool
	}{
		{"runc", "/usr/sbin/runc", `{"hooks":{"poststart":[]}}`, true},
		{"crun", "/usr/bin/crun", `{}`, false},
		{"a poststop hook", "/usr/sbin/runc", `{"hooks":{"poststop":[]}}`, false},
		{"no spec", "/usr/sbin/runc", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, spec := Runtime{Path: tt.runtime, Root: t.TempDir()}, filepath.Join(t.TempDir(), "config.json")
			state := filepath.Join(r.Root, "id", "state.json")
			if err := os.Mkdir(filepath.Dir(state), 0o700); err != nil {
				t.Fatal(err)
			}
			for path, text := range map[string]string{state: "{}", spec: tt.spec} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			done, err := r.DeleteWithoutRuntime("id", spec)
			if done != tt.want || err != nil || r.Knows("id") == tt.want {
				t.Errorf("%v, %v", done, err)
			}
		})
	}
}
