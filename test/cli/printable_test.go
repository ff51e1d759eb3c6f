package cli

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestTerminalIsSafe: texts of images, registries and users reach a terminal without control
// characters.
func TestTerminalIsSafe(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	const title = "\x1b]0;owned\a\x9b31m\u009b31m"
	// An OCI layout whose image has a command, labels and variables of that kind.
	layout := filepath.Join(t.TempDir(), "layout")
	check(t, os.CopyFS(layout, os.DirFS(image())))
	changeImageConfig(t, layout, func(config map[string]any) {
		config["Cmd"] = []string{"/bin/" + title}
		config["Labels"] = map[string]string{title: title}
		config["Env"] = []string{"PATH=/bin:/" + title, "X=" + title}
	})
	root := filepath.Join(t.TempDir(), "root")
	check(t, os.MkdirAll(root, 0o755))
	check(t, os.WriteFile(filepath.Join(root, "script"), []byte("#!/bin/\x1b[31mloader\n"), 0o755))

	n.berth("run", "-d", "--name", "odd", "--label", "x="+title, image(), "sh", "-c", "sleep 1000 #"+title).ok()
	defer n.berth("rm", "-f", "odd").ok()
	for _, words := range [][]string{
		{"run", layout},
		{"run", layout, title},
		{"run", root, "/script"},
		{"run", "registry.invalid/" + title},
		{"run", "--name", title, image()},
		{"run", "--gpus", title, image()},
		{"run", "-v", title + ":/x", image()},
		{"run", "--" + title, image()},
		{title},
		{"logs", title},
		{"stop", title},
		{"wait", title},
		{"inspect", title},
		{"exec", "odd", "/bin/" + title},
		{"alloc", "1", title},
		{"release", title},
		{"ps", "-a", "--no-trunc"},
		{"images"},
		{"leases"},
		{"inspect", "odd"},
		{"inspect", "--why", "odd"},
		{"inspect", layout},
	} {
		r := n.berth(words...)
		for _, line := range strings.Split(r.stdout+r.stderr, "\n") {
			if strings.ContainsFunc(line, unicode.IsControl) || !utf8.ValidString(line) {
				t.Errorf("%q: %q", words, line)
			}
		}
	}
}

// changeImageConfig changes the configuration of a layout's only image. Its name is that of
// the content that it had, so the layout's descriptors are written anew.
func changeImageConfig(t *testing.T, layout string, change func(config map[string]any)) {
	t.Helper()
	blob := func(descriptor map[string]any) string {
		algorithm, digest, _ := strings.Cut(fmt.Sprint(descriptor["digest"]), ":")
		return filepath.Join(layout, "blobs", algorithm, digest)
	}
	read := func(path string) (v map[string]any) {
		data, err := os.ReadFile(path)
		check(t, err)
		check(t, json.Unmarshal(data, &v))
		return v
	}
	index := read(filepath.Join(layout, "index.json"))
	first := index["manifests"].([]any)[0].(map[string]any)
	manifest := read(blob(first))
	described := manifest["config"].(map[string]any)
	config := read(blob(described))
	change(config["config"].(map[string]any))
	write := func(v any, descriptor map[string]any) {
		data, err := json.Marshal(v)
		check(t, err)
		descriptor["digest"], descriptor["size"] = fmt.Sprintf("sha256:%x", sha256.Sum256(data)), len(data)
		check(t, os.WriteFile(blob(descriptor), data, 0o644))
	}
	write(config, described)
	write(manifest, first)
	data, err := json.Marshal(index)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(layout, "index.json"), data, 0o644))
}
