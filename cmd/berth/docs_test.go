package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files and generated documentation")

// golden compares with a file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what the code says; go test ./cmd/berth -update writes it. The code says:\n%s", path, got)
	}
}

// docs renders the generated files by name. They don't depend on the build.
func docs() (map[string]string, error) {
	app := newApp()
	app.Version = ""
	man, err := app.ToManWithSection(1)
	if err != nil {
		return nil, fmt.Errorf("render the man page: %w", err)
	}
	fish, err := app.ToFishCompletion()
	if err != nil {
		return nil, fmt.Errorf("render the fish completion: %w", err)
	}
	// The library shows placeholders' marks, and takes --wait to need a value.
	fish = strings.NewReplacer("`", "", " -l wait -r ", " -l wait ").Replace(fish)
	return map[string]string{"man/berth.1": man, "completions/berth.fish": fish}, nil
}

// TestGenerated: what packaging ships is what the code says.
func TestGenerated(t *testing.T) {
	pages, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		golden(t, filepath.Join("../../packaging", name), text)
	}
}

// TestHelpFits: nobody has to scroll sideways.
func TestHelpFits(t *testing.T) {
	app := newApp()
	texts := map[string]string{"berth": app.Description}
	for _, c := range app.VisibleCommands() {
		texts[c.Name] = c.Description + "\n" + c.Usage
	}
	for name, text := range texts {
		for line := range strings.Lines(text) {
			if n := len([]rune(line)); n > 120 {
				t.Errorf("%s: a line of its help has %d characters: %s", name, n, line)
			}
		}
	}
}
