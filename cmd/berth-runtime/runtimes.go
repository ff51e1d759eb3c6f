package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/wrapper"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// listRuntimes lists the configured runtime, or the first that is installed, and after it
// those whose containers may still exist. Where the configuration cannot be read, the
// list has the installed runtimes, and the error says why.
func (s *settings) listRuntimes() ([]wrapper.Runtime, error) {
	configured, err := s.configuredRuntime()
	var all []wrapper.Runtime
	if configured != "" {
		path, missing := findProgram(configured)
		if missing != nil {
			path = configured // the error of the exec names it
		}
		all = append(all, newRuntime(path))
	}
	for _, name := range []string{"crun", "runc"} {
		path, missing := findProgram(name)
		if missing == nil && (len(all) == 0 || all[0].Path != path) {
			all = append(all, newRuntime(path))
		}
	}
	return all, err
}

// configuredRuntime returns the runtime that the configuration names, "" if it names none.
//
// Most of an engine's calls (state, start, kill, exec) need nothing else of the
// configuration. They do not decode it where scanRuntime finds the key, which saves each
// of them 0.2 ms of 2.
func (s *settings) configuredRuntime() (string, error) {
	data, err := smallfile.Read(s.path, 1<<20)
	if errors.Is(err, fs.ErrNotExist) && s.path == berth.ConfigPath {
		return "", nil
	}
	if err == nil {
		if name, ok := scanRuntime(data); ok {
			return name, nil
		}
	}
	err = s.loadConfig()
	return s.config.Runtime, err
}

// scanRuntime finds the key runtime in a configuration without decoding it. ok is false
// where the file is not written plainly enough for that: then name means nothing. For a
// file that berth accepts, name is what [berth.LoadConfig] reads.
func scanRuntime(config []byte) (name string, ok bool) {
	for _, odd := range []string{`\`, `"""`, `'''`} {
		if bytes.Contains(config, []byte(odd)) {
			return "", false
		}
	}
	found := false
	for line := range bytes.Lines(config) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("[")) {
			break // runtime is no key of a table
		}
		if bytes.HasPrefix(line, []byte("#")) || !bytes.Contains(bytes.ToLower(line), []byte("runtime")) {
			continue
		}
		value, isKey := bytes.CutPrefix(line, []byte("runtime"))
		value, isSet := bytes.CutPrefix(bytes.TrimLeft(value, " \t"), []byte("="))
		value = bytes.TrimLeft(value, " \t")
		if found || !isKey || !isSet || len(value) == 0 || value[0] != '"' && value[0] != '\'' {
			return "", false
		}
		text, rest, closed := bytes.Cut(value[1:], value[:1])
		if rest = bytes.TrimLeft(rest, " \t"); !closed || len(rest) > 0 && rest[0] != '#' {
			return "", false
		}
		name, found = string(text), true
	}
	return name, true
}

// findProgram looks for a program where PATH says. Without a PATH, which podman leaves
// out for its cleanup, it looks in the usual directories.
func findProgram(name string) (path string, err error) {
	path, err = exec.LookPath(name)
	if err == nil || os.Getenv("PATH") != "" || filepath.Base(name) != name {
		return path, err
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

func newRuntime(path string) wrapper.Runtime {
	name := "runc"
	if filepath.Base(path) == "crun" {
		name = "crun"
	}
	root := wrapper.DefaultRoot(name, os.Getenv("XDG_RUNTIME_DIR"), os.Geteuid())
	return wrapper.Runtime{Name: name, Path: path, Root: root}
}
