package setup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

// PlanRemoval plans the restoration of an engine's configuration to its state before berth. A file that
// the admin has changed since keeps those changes: only berth's own keys are removed. Remove is an
// error if berth is the engine's default runtime by a setting that berth setup hasn't made.
func PlanRemoval(h Host, record *Record) (Plan, error) {
	p := Plan{}
	for _, e := range slices.Backward(record.Files) {
		before, err := h.ReadFile(e.Path)
		if err != nil {
			return Plan{}, err
		}
		after, kept, err := e.restore(before)
		if err != nil {
			return Plan{}, inFile(e.Path, err)
		}
		if len(kept) > 0 {
			p.addNote("", "%s: %s isn't what berth has set, and stays", e.Path, strings.Join(kept, " and "))
		}
		if !before.Same(after) {
			p.Changes = append(p.Changes, Change{e.Path, before, after})
		}
	}
	if err := p.checkDefaultRuntime(h, record.Engine); err != nil {
		return Plan{}, err
	}
	if len(p.Changes) > 0 {
		p.Apply = RestartCommand(record.Engine)
	}
	return p, nil
}

// restore returns a file without berth's part.
func (e *EditedFile) restore(f File) (after File, kept []string, err error) {
	switch {
	case !f.Exists:
		return f, nil, nil
	case len(e.Keys) == 0 && e.isUnchanged(f):
		return File{}, nil, nil
	case len(e.Keys) == 0:
		return f, []string{"it"}, nil
	}
	text, kept, err := e.withoutBerth(f)
	if err != nil || text == nil {
		return File{}, kept, err
	}
	return f.withData(text), kept, nil
}

// checkDefaultRuntime returns an error if a file would name berth as the default runtime
// and the runtime would be gone. An engine whose default runtime is missing does not
// start.
func (p *Plan) checkDefaultRuntime(h Host, engine string) error {
	switch engine {
	case "docker":
		return p.checkDockerDefault(h)
	case "containerd":
		files, err := h.containerdFiles(h.containerdMain())
		if err != nil {
			return nil //nolint:nilerr // containerd reads no file either
		}
		var names []string
		for _, f := range files {
			names = append(names, f.path)
		}
		return p.checkTOMLDefault(h, names, "default_runtime_name", engine, func(values map[string]any) map[string]any {
			return innerTable(findCRI(values), "containerd")
		})
	}
	return p.checkTOMLDefault(h, h.podmanFiles(), "runtime", engine, func(values map[string]any) map[string]any {
		return innerTable(values, "engine")
	})
}

func (p *Plan) checkDockerDefault(h Host) error {
	name, err := h.readUnit(dockerUnit).dockerConfig()
	if err != nil {
		return nil //nolint:nilerr // dockerd has its runtimes from flags
	}
	text, name := p.textAfter(h, name)
	runtime, _, err := edit.JSON{}.Get(text, "default-runtime")
	if err != nil || !(edit.JSON{}).Equal(runtime, Name) {
		return inFile(name, err)
	}
	if _, ok, err := (edit.JSON{}).Get(text, "runtimes", Name); ok || err != nil {
		return inFile(name, err)
	}
	return defaultRuntimeError(name, "default-runtime", "dockerd")
}

// checkTOMLDefault looks into files that are merged: one may have the key, another the
// runtime. engineTable finds the table of both.
func (p *Plan) checkTOMLDefault(h Host, files []string, key, engine string, engineTable func(map[string]any) map[string]any) error {
	by := ""
	for _, name := range files {
		text, name := p.textAfter(h, name)
		values, err := edit.DecodeTOML(text)
		if err != nil {
			return inFile(name, err)
		}
		t := engineTable(values)
		if _, ok := innerTable(t, "runtimes")[Name]; ok {
			return nil
		}
		if t[key] == Name {
			by = name
		}
	}
	if by == "" {
		return nil
	}
	return defaultRuntimeError(by, key, engine)
}

func defaultRuntimeError(name, key, engine string) error {
	return fmt.Errorf("%s has %s = %q, which berth setup hasn't written: %s wouldn't start without that runtime: "+
		"name another there, then run this again", name, key, Name, engine)
}

// textAfter returns a file's content after the plan, and the file's own path. A file that
// can't be read is empty: engines read no more of it.
func (p *Plan) textAfter(h Host, name string) (text []byte, target string) {
	f, target, err := h.readTarget(name)
	if err != nil {
		return nil, name
	}
	if c := p.findChange(h, target); c != nil {
		f = c.After
	}
	return f.Data, target
}
