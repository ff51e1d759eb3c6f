package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/berth-gpu/berth/internal/inroot"
)

// findExtras finds the files of the table of extras. libraries are the file names that a
// container's loader will know.
func (f finder) findExtras(libraries map[string]bool) ([]source, error) {
	var all []source
	for _, row := range extraTable() {
		dirs := f.machine.expandPaths(f.version, row.from)
		if row.from == nil {
			dirs = SearchedDirectories(f.root)
		}
		found := f.findExtra(f.machine.expandPaths(f.version, row.names), dirs)
		for _, s := range found {
			s.caps, s.compat32 = row.caps, row.bits32
			s.destinations = destinationPaths(f.machine.expandPaths(f.version, row.to), path.Base(s.from))
			s.to = strings.TrimPrefix(s.destinations[0], "/")
			var err error
			if s.content, err = f.bareLibraryNames(s.from, libraries); err != nil {
				return nil, fmt.Errorf("file %s: %w", s.from, err)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// findExtra finds the files of one row, each in the first directory that has it.
func (f finder) findExtra(names, dirs []string) []source {
	var all []source
	seen := map[string]bool{}
	for _, name := range names {
		for _, dir := range dirs {
			for _, file := range f.matchingFiles(dir, name) {
				if s, _, ok := f.findFile(dir, file); ok && !seen[file] {
					seen[file] = true
					all = append(all, s)
				}
			}
		}
		if len(all) > 0 {
			break
		}
	}
	return all
}

// matchingFiles returns the files of a directory that match a row's name.
func (f finder) matchingFiles(dir, name string) []string {
	if !strings.Contains(name, "*") {
		return []string{name}
	}
	var all []string
	for _, file := range listDirectory(f.root, dir) {
		if ok, err := path.Match(name, file); ok && err == nil {
			all = append(all, file)
		}
	}
	return all
}

func destinationPaths(to []string, file string) []string {
	all := make([]string, len(to))
	for i, t := range to {
		if all[i] = t; strings.HasSuffix(t, "/") {
			all[i] += file
		}
	}
	return all
}

// maxText bounds the files that are searched for names of libraries.
const maxText = 64 << 10

// bareLibraryNames returns the content of a JSON or ICD file with the host paths of the driver's
// libraries replaced by their names, which the loader finds in a container. It is nil if nothing has
// to be replaced: the file has no such path, or is larger than maxText.
func (f finder) bareLibraryNames(from string, libraries map[string]bool) ([]byte, error) {
	ext := path.Ext(from)
	if ext != ".json" && ext != ".icd" {
		return nil, nil
	}
	data, err := inroot.ReadFile(f.root, from, maxText)
	if errors.Is(err, inroot.ErrTooLarge) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if ext == ".icd" {
		return bareLine(data, libraries), nil
	}
	return bareJSON(data, libraries), nil
}

func bareLine(data []byte, libraries map[string]bool) []byte {
	if name, ok := ownLibrary(string(bytes.TrimSpace(data)), libraries); ok {
		return []byte(name + "\n")
	}
	return nil
}

// bareJSON replaces the paths in JSON; nil if data isn't JSON.
func bareJSON(data []byte, libraries map[string]bool) []byte {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || !bareValue(v, libraries) {
		return nil
	}
	data, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return nil
	}
	return append(data, '\n')
}

// bareValue replaces each library_path, however deep.
func bareValue(v any, libraries map[string]bool) (changed bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, of := range v {
			if text, ok := of.(string); ok && key == "library_path" {
				if name, ok := ownLibrary(text, libraries); ok {
					v[key], changed = name, true
				}
				continue
			}
			changed = bareValue(of, libraries) || changed
		}
	case []any:
		for _, of := range v {
			changed = bareValue(of, libraries) || changed
		}
	}
	return changed
}

// ownLibrary returns the name of the driver's library at a path.
func ownLibrary(library string, libraries map[string]bool) (name string, ok bool) {
	name = path.Base(library)
	return name, path.IsAbs(library) && libraries[name]
}
