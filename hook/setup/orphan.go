package setup

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/hook/setup/jsonedit"
	"github.com/berth-gpu/berth/hook/setup/tomledit"
)

// errDefault refuses to take a runtime away that others than berth setup have made the
// engine's default one: an engine whose default runtime isn't there doesn't start.
func errDefault(name, key, engine string) error {
	return fmt.Errorf("%s has %s = %q, which berth setup hasn't written: %s wouldn't start without that runtime: "+
		"name another there, then run this again", name, key, Name, engine)
}

// orphans is an error if a file that names berth as the default runtime would be left
// behind without the runtime.
func (p Plan) orphans(h Host, engine string) error {
	switch engine {
	case "docker":
		return p.dockerOrphan(h)
	case "containerd":
		main := h.containerdMain()
		dump, err := tomledit.Decode([]byte(h.Dump))
		if err != nil {
			dump = nil // then containerd can't be asked, and the main file is what is known
		}
		files := append([]string{main}, list(dump["imports"])...)
		return p.tomlOrphan(h, files, "default_runtime_name", engine, func(values map[string]any) map[string]any {
			return table(criTable(values), "containerd")
		})
	}
	return p.tomlOrphan(h, h.podmanFiles(), "runtime", engine, func(values map[string]any) map[string]any {
		return table(values, "engine")
	})
}

func (p Plan) dockerOrphan(h Host) error {
	name, err := h.unit(dockerUnit).dockerConfig()
	if err != nil {
		return nil // dockerd is told by flags, which are nothing of ours
	}
	text, name := p.after(h, name)
	if blank(text) {
		return nil
	}
	runtime, _, err := jsonedit.Get(text, "default-runtime")
	if err != nil || !jsonedit.Equal(runtime, jsonedit.Raw(`"`+Name+`"`)) {
		return err
	}
	if _, ok, err := jsonedit.Get(text, "runtimes", Name); ok || err != nil {
		return err
	}
	return errDefault(name, "default-runtime", "dockerd")
}

// tomlOrphan looks into files of which the key in one counts, and the runtime can be in
// another. at finds the table that has both.
func (p Plan) tomlOrphan(h Host, files []string, key, engine string, at func(map[string]any) map[string]any) error {
	by := ""
	for _, name := range files {
		text, name := p.after(h, name)
		values, err := tomledit.Decode(text)
		if err != nil {
			return in(name, err)
		}
		t := at(values)
		if _, there := table(t, "runtimes")[Name]; there {
			return nil
		}
		if t[key] == Name {
			by = name
		}
	}
	if by == "" {
		return nil
	}
	return errDefault(by, key, engine)
}

// after is what a file has once the plan is carried out, and its own path. One that can't
// be read has nothing: engines read no more of it.
func (p Plan) after(h Host, name string) (text []byte, target string) {
	f, target, err := h.read(name)
	if err != nil {
		return nil, name
	}
	i := slices.IndexFunc(p.Changes, func(c Change) bool { return c.Path == target })
	if i >= 0 {
		f = p.Changes[i].After
	}
	return f.Data, target
}
