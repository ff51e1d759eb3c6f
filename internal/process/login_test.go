package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFindLogin(t *testing.T) {
	for _, c := range []struct {
		name, loginuid, sudo string
		uid                  int
		source               string
	}{
		{"a login session", "1000", "", 1000, LoginAudit},
		{"the kernel's record comes first", "1000", "1001", 1000, LoginAudit},
		{"sudo without a record", "4294967295", "1001", 1001, LoginSudo},
		{"sudo on a kernel without audit", "", "1001", 1001, LoginSudo},
		{"root's own session", "0", "1001", 0, ""},
		{"root by sudo", "4294967295", "0", 0, ""},
		{"a service", "4294967295", "", 0, ""},
		{"no number", "x", "-1", 0, ""},
		{"no user", "4294967295", "4294967295", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "self"), 0o755); err != nil {
				t.Fatal(err)
			}
			if c.loginuid != "" {
				if err := os.WriteFile(filepath.Join(proc, "self/loginuid"), []byte(c.loginuid), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if uid, source := FindLogin(proc, c.sudo); uid != c.uid || source != c.source {
				t.Errorf("%d by %q", uid, source)
			}
		})
	}
}
