package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFrozenCgroup(t *testing.T) {
	const v1 = "5:devices:/x\n4:cpu,freezer:/a/b\n0::/x\n"
	for _, tt := range []struct {
		name, membership, file, state, want string
	}{
		{"version 2", "0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 1\n", "/a/b"},
		{"version 2, not frozen", "0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 0\n", ""},
		{"version 2 beside version 1", "1:freezer:/\n0::/a\n", "unified/a/cgroup.events", "frozen 1\n", "/a"},
		{"version 1", v1, "cpu,freezer/a/b/freezer.state", "FROZEN\n", "/a/b"},
		{"version 1, freezing", v1, "cpu,freezer/a/b/freezer.state", "FREEZING\n", "/a/b"},
		{"version 1, thawed", v1, "cpu,freezer/a/b/freezer.state", "THAWED\n", ""},
		{"another controller", v1, "devices/x/freezer.state", "FROZEN\n", ""},
		{"outside of the cgroup namespace", "0::/../a\n", "a/cgroup.events", "frozen 1\n", ""},
		{"no such process", "", "a/cgroup.events", "frozen 1\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proc, mount := t.TempDir(), t.TempDir()
			for path, text := range map[string]string{proc + "/7/cgroup": tt.membership, filepath.Join(mount, tt.file): tt.state} {
				if text == "" {
					continue
				}
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := FrozenCgroup(proc, mount, 7); got != tt.want {
				t.Errorf("got %q", got)
			}
		})
	}
}
