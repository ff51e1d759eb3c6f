package engines

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/hook/setup"
)

// TestApply: a change by another process isn't overwritten, and the changes can be undone after a kill
// at any step.
func TestApply(t *testing.T) {
	dir := t.TempDir()
	a, b, record := filepath.Join(dir, "new", "a"), filepath.Join(dir, "b"), filepath.Join(dir, "record")
	if err := os.WriteFile(b, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := setup.Plan{
		Record: &setup.Record{Version: 1, Engine: "docker"},
		Changes: []setup.Change{
			{Path: a, After: setup.File{Exists: true, Data: []byte("ours"), Mode: 0o640, UID: os.Getuid(), GID: os.Getgid()}},
			{Path: b, Before: setup.File{Exists: true, Data: []byte("as it was")}, After: setup.File{Exists: true, Data: []byte("ours")}},
		},
	}
	h := setup.Host{FS: os.DirFS("/")}
	want := b + " was changed meanwhile by another process: run this again"
	if err := Apply(h, plan, record); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	got := map[string]string{}
	for _, path := range []string{a, b, record} {
		text, _ := os.ReadFile(path)
		got[filepath.Base(path)] = string(text)
	}
	kept, err := plan.Record.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "ours", "b": "theirs", "record": string(kept)}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(a); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", fi, err)
	}
}

// TestValidate: the engine's verdict about files that aren't installed yet.
func TestValidate(t *testing.T) {
	// The engine of the test accepts files in which nothing is wrong.
	call := []string{"sh", "-c", "! grep -h wrong " + setup.Dir + "/* && cat " + setup.Dir + "/a"}
	accept := func(string) error { return nil }
	refuse := func(string) error { return os.ErrInvalid }
	files := func(text string) map[string][]byte { return map[string][]byte{"a": []byte(text)} }
	for _, c := range []struct {
		name  string
		check *setup.Check
		want  string
	}{
		{"no check", nil, ""},
		{"accepted", &setup.Check{Command: call, After: files("fine")}, ""},
		{"accepted and judged", &setup.Check{Command: call, After: files("fine"), Verify: accept}, ""},
		{"accepted and refused", &setup.Check{Command: call, After: files("fine"), Verify: refuse}, "nothing was changed: invalid argument"},
		{"refused", &setup.Check{Command: call, Before: files("fine"), After: files("wrong")}, "sh refuses what would be written, so nothing was changed: wrong"},
		{"refused before, too", &setup.Check{Command: call, Before: files("also wrong"), After: files("wrong")}, "sh refuses its configuration as it is, so nothing was changed: also wrong"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := Validate(t.Context(), setup.Plan{Check: c.check}); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestForget: a removal removes the record, temporary files and empty directories.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	data, used, empty := filepath.Join(dir, "data"), filepath.Join(dir, "used"), filepath.Join(dir, "empty")
	for _, d := range []string{filepath.Join(data, "setup"), used, empty} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	record := setup.Record{Version: 1, Engine: "docker", Dirs: []string{used, empty}, Files: []setup.EditedFile{{Path: filepath.Join(empty, "file")}}}
	text, err := record.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{setup.RecordPath(data, "docker"): string(text), filepath.Join(empty, "file.tmp"): "", filepath.Join(used, "theirs"): ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := setup.Host{FS: os.DirFS("/")}
	for range 2 { // a second time there is nothing to forget
		if err := Forget(h, data, "docker"); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		left = append(left, strings.TrimPrefix(path, dir))
		return err
	})
	if diff := cmp.Diff([]string{"", "/data", "/data/setup", "/used", "/used/theirs"}, left); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
