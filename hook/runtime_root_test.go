package hook

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindRuntimeRoot: the state directory is that of the runtime's command line, if it has the container.
func TestFindRuntimeRoot(t *testing.T) {
	proc, root := t.TempDir(), t.TempDir()
	for _, dir := range []string{proc + "/7", root + "/c1"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, line, container, want string
	}{
		{"runc", "/usr/sbin/runc --root " + root + " --log /x create --bundle /b c1", "c1", root},
		{"crun", "crun --systemd-cgroup --root=" + root + " create c1", "c1", root},
		{"one hyphen", "runc -root " + root + " create c1", "c1", root},
		{"no root", "runc --log /x create c1", "c1", ""},
		{"no value", "runc create c1 --root", "c1", ""},
		{"relative", "runc --root state create c1", "c1", ""},
		{"another container's", "runc --root " + root + " create c2", "c2", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			line := strings.ReplaceAll(tt.line, " ", "\x00") + "\x00"
			if err := os.WriteFile(filepath.Join(proc, "7/cmdline"), []byte(line), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := findRuntimeRoot(proc, 7, tt.container); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := findRuntimeRoot(proc, 8, "c1"); got != "" {
		t.Errorf("of a process that has ended: %q", got)
	}
}
