package wrapper

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoRuntime: the error for a missing runtime has advice.
func TestNoRuntime(t *testing.T) {
	none := filepath.Join(t.TempDir(), "crun")
	for _, tt := range []struct {
		name     string
		runtimes func() ([]Runtime, error)
		want     string
	}{
		{"none", func() ([]Runtime, error) { return nil, nil }, "berth: no OCI runtime is configured, and neither crun nor runc is in PATH: install one, or set runtime in berth's configuration\n"},
		{"configured, not there", func() ([]Runtime, error) { return []Runtime{{Name: "crun", Path: none}}, nil }, "berth: find OCI runtime: stat " + none + ": it does not exist; install it, or set another as runtime in berth's configuration\n"},
		{"a configuration that can't be read", func() ([]Runtime, error) {
			return nil, &fs.PathError{Op: "open", Path: "/etc/berth/config.toml", Err: errors.New("broken")}
		}, "berth: open /etc/berth/config.toml: broken\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, verb := range []string{"create", "delete", "state"} {
				var said strings.Builder
				o := Options{Args: []string{"berth-runtime", verb, "c1"}, Self: "/proc/self/exe", Runtimes: tt.runtimes, Stderr: &said}
				if code := Run(t.Context(), o); code != 1 || said.String() != tt.want {
					t.Errorf("%s: exit %d, %q; want %q", verb, code, said.String(), tt.want)
				}
			}
		})
	}
}
