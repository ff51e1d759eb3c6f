package setup

import (
	"slices"
	"strings"
)

// Remove plans that an engine's configuration is as it was. What the admin has changed
// since stays changed: then only berth's own keys go. That somebody else has made berth
// the default runtime is an error.
func Remove(h Host, record *Record) (Plan, error) {
	p := Plan{}
	for _, e := range slices.Backward(record.Files) {
		before, err := h.Look(e.Path)
		if err != nil {
			return Plan{}, err
		}
		after, left, err := e.without(before)
		if err != nil {
			return Plan{}, in(e.Path, err)
		}
		if len(left) > 0 {
			p.note("%s: %s isn't what berth has set, and stays", e.Path, strings.Join(left, " and "))
		}
		if !before.Same(after) {
			p.Changes = append(p.Changes, Change{e.Path, before, after})
		}
	}
	if err := p.orphans(h, record.Engine); err != nil {
		return Plan{}, err
	}
	if len(p.Changes) > 0 {
		p.Apply = restart(record.Engine)
	}
	return p, nil
}

// restart is the command that has an engine read all of its configuration.
func restart(engine string) string {
	switch engine {
	case "docker":
		return "systemctl daemon-reload && systemctl restart docker"
	case "containerd":
		return "systemctl restart containerd"
	}
	return "" // podman reads it each time
}

// without is a file without berth's part.
func (e *Edited) without(f File) (after File, left []string, err error) {
	switch {
	case !f.Exists:
		return f, nil, nil
	case len(e.Keys) == 0 && e.wrote(f):
		return File{}, nil, nil
	case len(e.Keys) == 0:
		return f, []string{"it"}, nil
	}
	text, left, err := e.base(f)
	if err != nil {
		return File{}, nil, err
	}
	if text == nil {
		return File{}, left, nil
	}
	return f.with(text), left, nil
}
