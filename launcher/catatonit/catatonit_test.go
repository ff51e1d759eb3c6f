package catatonit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compileInit builds an empty C program.
func compileInit(t *testing.T, at string, flags ...string) {
	t.Helper()
	cc := exec.Command("cc", append(flags, "-x", "c", "-o", at, "-")...)
	cc.Stdin = strings.NewReader("int main(void) { return 0; }")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	dir := func(name string) string {
		path := filepath.Join(root, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty, static, dynamic, unusable, directory := dir("empty"), dir("static"), dir("dynamic"), dir("unusable"), dir("directory")
	compileInit(t, static+"/catatonit", "-static")
	compileInit(t, dynamic+"/catatonit")
	for _, err := range []error{os.WriteFile(unusable+"/catatonit", []byte("x"), 0o644), os.Mkdir(directory+"/catatonit", 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		dirs  []string
		want  string
		fails string
	}{
		{name: "first static one", dirs: []string{empty, unusable, directory, dynamic, static}, want: static + "/catatonit"},
		{name: "none", dirs: []string{empty, unusable, directory}, fails: "catatonit is missing: install the distribution's package catatonit"},
		{name: "dynamic", dirs: []string{dynamic}, fails: dynamic + "/catatonit is not a static program"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := findIn(tt.dirs)
			switch {
			case tt.fails == "" && (err != nil || got != tt.want):
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			case tt.fails != "" && (!errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), tt.fails)):
				t.Errorf("error %v, want %q", err, tt.fails)
			}
		})
	}
}
