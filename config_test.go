package berth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongKey: the error of an unknown key, or of a value of another type, has the line, and the likely key or the
// right type.
func TestWrongKey(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"misspelt", "data = '/d'\n\nstat = '/s'", `line 3: unknown key "stat" (did you mean state?)`},
		{"misspelt in a section", "[policy]\nfeature = []", `line 2: unknown key "policy.feature" (did you mean policy.features?)`},
		{"of another section", "in_use = 'warn'", `line 1: unknown key "in_use" (did you mean policy.in_use?)`},
		{"behind the wrong section", "[host]\nproc = '/proc'\nruntime = 'crun'", `line 3: unknown key "host.runtime" (did you mean runtime?)`},
		{"a section", "[hosts]\nproc = '/proc'", `line 1: unknown key "hosts" (did you mean host?)`},
		{"no switch", "[policy]\nguard = 'yes'", "line 2, column 9: policy.guard: it is true or false"},
		{"no text", "state = 5", "line 1, column 9: state: it is a text, in quotes"},
		{"no list", "[host]\ncdi = '/etc/cdi'", "line 2, column 7: host.cdi: it is a list of texts"},
		{"near no key", "frobnicate = true", `line 1: unknown key "frobnicate"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := LoadConfig(path)
			if err == nil || !strings.HasSuffix(err.Error(), path+": "+c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}
