package setup

import (
	"bytes"
	"maps"
	"path"
	"slices"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

// RebuildRecord returns a record of what names berth in an engine's configuration, for a
// host whose record is lost; nil if nothing does. The values that berth has replaced are
// unknown, so [PlanRemoval] deletes berth's values and restores none.
func RebuildRecord(h Host, engine, data string) (*Record, error) {
	r := &Record{Version: recordVersion, Engine: engine}
	script := path.Join(data, "engines", engine, runtimeProgram)
	own := map[string]string{script: "Written by berth setup"} // paths, and what proves that a file is berth's
	var err error
	switch engine {
	case "docker":
		own[dockerDropIn] = "Written by berth setup"
		own[path.Join(StubDir(data), dockerStub)] = "berth-hook"
		err = r.rebuildDocker(h)
	case "containerd":
		dropIn := containerdDropIn(h.containerdMain())
		own[dropIn] = "Written by berth setup"
		err = r.rebuildContainerd(h, dropIn)
	case "podman":
		own[PodmanDropIn] = "Written by berth setup"
		for _, stage := range podmanStages() {
			own[hookPath(podmanHooks, stage)] = "berth-hook"
			own[hookPath(formerPodmanHooks, stage)] = "berth-hook"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if err == nil {
			err = r.rebuildOwnFile(h, name, own[name])
		}
	}
	if err != nil || len(r.Files) == 0 {
		return nil, err
	}
	return r, nil
}

// runtimeProgram is the name of berth's runtime wrapper, wherever it is installed.
const runtimeProgram = "berth-runtime"

// rebuildOwnFile adds a file of berth's own if its text or link has the mark.
func (r *Record) rebuildOwnFile(h Host, name, mark string) error {
	f, err := h.ReadFile(name)
	if err != nil || !f.Exists || !bytes.Contains(append([]byte(f.Link), f.Data...), []byte(mark)) {
		return err
	}
	r.Files = append(r.Files, EditedFile{Path: name, After: []string{hashFile(f)}})
	return nil
}

// rebuildKeys adds keys of a file that is the admin's. The file stays, even if it becomes
// empty.
func (r *Record) rebuildKeys(name, format string, text []byte, keys []Key) error {
	for i := range keys {
		value, _, err := editorOf(format).Get(text, keys[i].Path...)
		if err != nil {
			return inFile(name, err)
		}
		keys[i].After = string(value)
	}
	if len(keys) > 0 {
		r.Files = append(r.Files, EditedFile{Path: name, Format: format, Before: []byte{}, Keys: keys})
	}
	return nil
}

// rebuildDocker adds the runtimes that are berth's, and the default runtime if it is one
// of them: dockerd doesn't start with a default runtime that is missing.
func (r *Record) rebuildDocker(h Host) error {
	c, err := ReadDockerConfig(h)
	if err != nil {
		return err
	}
	f, err := h.ReadFile(c.Path)
	if err != nil {
		return err
	}
	var keys []Key
	for _, name := range slices.Sorted(maps.Keys(c.Runtimes)) {
		if path.Base(c.Runtimes[name]) != runtimeProgram {
			continue
		}
		keys = append(keys, Key{Path: []string{"runtimes", name}, Made: 1})
		if c.Default == name {
			keys = append(keys, Key{Path: []string{"default-runtime"}})
		}
	}
	return r.rebuildKeys(c.Path, "", f.Data, keys)
}

// rebuildContainerd adds the runtime berth, BinaryName of other runtimes that name berth's
// program, the default runtime, and the import of the drop-in.
func (r *Record) rebuildContainerd(h Host, dropIn string) error {
	files, err := h.containerdFiles(h.containerdMain())
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.path == dropIn {
			continue
		}
		var keys []Key
		for _, version := range []int{2, 3} {
			at := append(criPlugin(version), "containerd")
			keys = append(keys, runtimeKeys(innerTable(f.values, at...), at)...)
		}
		if imports := stringList(f.values["imports"]); slices.Contains(imports, dropIn) {
			others := slices.DeleteFunc(slices.Clone(imports), func(name string) bool { return name == dropIn })
			key := Key{Path: []string{"imports"}}
			if len(others) > 0 {
				text := edit.TOMLList(others)
				key.Before = &text
			}
			keys = append(keys, key)
		}
		if err := r.rebuildKeys(f.path, tomlFormat, f.Data, keys); err != nil {
			return err
		}
	}
	return nil
}

// runtimeKeys returns the keys of the table "containerd", whose path is at, that name
// berth. The tables of the runtime berth itself go when they are empty.
func runtimeKeys(values map[string]any, at []string) (keys []Key) {
	if values["default_runtime_name"] == Name {
		keys = append(keys, Key{Path: append(slices.Clone(at), "default_runtime_name"), Made: 1})
	}
	runtimes := innerTable(values, "runtimes")
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		runtime := append(slices.Clone(at), "runtimes", name)
		options := innerTable(runtimes, name, "options")
		program, _ := options["BinaryName"].(string)
		switch {
		case name != Name && path.Base(program) == runtimeProgram:
			keys = append(keys, Key{Path: append(runtime, "options", "BinaryName"), Made: 1})
		case name == Name:
			for _, key := range slices.Sorted(maps.Keys(innerTable(runtimes, name))) {
				if key != "options" {
					keys = append(keys, Key{Path: append(slices.Clone(runtime), key), Made: 1})
				}
			}
			for _, key := range slices.Sorted(maps.Keys(options)) {
				keys = append(keys, Key{Path: append(slices.Clone(runtime), "options", key), Made: 1})
			}
		}
	}
	return keys
}
