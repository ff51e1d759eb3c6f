package ociruntime

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/testutil"
)

// copyProgram returns a copy of cat by that name.
func copyProgram(t *testing.T, name string) string {
	t.Helper()
	testutil.NeedRoot(t)
	data, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStart(t *testing.T) {
	const made = "_LIBCONTAINER_CLONED_BINARY=1"
	for _, tt := range []struct {
		name, program string
		refuse        int // that many starts fail
		want          []string
		tries         int
		err           bool
	}{
		{"crun", "crun", 0, []string{"A=b", made}, 1, false},
		{"crun where programs are known by their paths", "crun", 1, []string{"A=b"}, 2, false},
		{"crun that can't be started", "crun", 2, nil, 2, true},
		{"another", "runc", 0, []string{"A=b"}, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := copyProgram(t, tt.program)
			var out strings.Builder
			cmd := exec.Command(path, "/proc/self/environ")
			cmd.Env, cmd.Stdout = []string{"A=b"}, &out
			tries := 0
			p := Seal(path)
			defer p.Close()
			cmd, err := p.Start(cmd, func(cmd *exec.Cmd) error {
				if tries++; tries <= tt.refuse {
					return errors.New("refused")
				}
				return cmd.Start()
			})
			if (err != nil) != tt.err || tries != tt.tries {
				t.Fatalf("error %v after %d tries, want one: %v, after %d", err, tries, tt.err, tt.tries)
			}
			if err != nil {
				return
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, strings.Split(strings.TrimSuffix(out.String(), "\x00"), "\x00")); diff != "" {
				t.Errorf("environment:\n%s", diff)
			}
		})
	}
}
