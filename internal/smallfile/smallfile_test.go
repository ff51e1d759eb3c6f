package smallfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, 4095, 4096, 4097, 9000} {
		want := strings.Repeat("x", size)
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path, size); err != nil || string(got) != want {
			t.Errorf("size %d: %d bytes, %v", size, len(got), err)
		}
		if size == 0 {
			continue
		}
		if _, err := Read(path, size-1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("size %d with a smaller limit: %v", size, err)
		}
	}
	if _, err := Read(path+"x", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Read(filepath.Dir(path), 1); err == nil {
		t.Error("a directory was read")
	}
}

func TestInt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for text, want := range map[string]int{"-1\n": -1, " 17 ": 17} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := Int(path); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("many"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Int(path); err == nil {
		t.Error("a word was read as a number")
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for i := range 300 { // more than one buffer of entries
		name := strings.Repeat("n", 20) + string(rune('a'+i/26)) + string(rune('a'+i%26))
		want = append(want, name)
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Names(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got, err := Names(dir + "x"); err != nil || got != nil {
		t.Errorf("missing directory: %v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Names(filepath.Join(dir, "file")); err == nil {
		t.Error("a file was listed")
	}
}
