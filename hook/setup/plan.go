package setup

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Plan is what has to be done.
type Plan struct {
	// Changes have to be made in this order. None means that all is as it should be.
	Changes []Change
	// Dirs have to exist; new ones stay empty.
	Dirs []string
	// Record has to be kept before the changes are made. A removal has none.
	Record *Record
	// Check is how the engine validates the new configuration, nil if it can't.
	Check *Check
	// Apply is the command that makes the changes take effect, "" if none is needed.
	Apply string
	// Notes are for the admin.
	Notes []Note
}

// Note is a sentence for the admin, and what to do about it, "" for nothing.
type Note struct{ Text, Fix string }

func (n Note) String() string {
	if n.Fix == "" {
		return n.Text
	}
	return n.Text + ": " + n.Fix
}

// Change is what becomes of one file.
type Change struct {
	// Path is absolute. Its last part is a symbolic link only where the change is about
	// that link.
	Path          string
	Before, After File
}

// Check is a call of an engine that validates a configuration.
type Check struct {
	// Command is what is called. In it and in the files, Dir stands for the directory
	// into which the files are written.
	Command []string
	// Before and After are the files by name, as they are and as they shall be.
	Before, After map[string][]byte
	// Verify checks the engine's output for After. nil accepts every output.
	Verify func(output string) error
}

// Dir stands for the directory of a [Check].
const Dir = "{dir}"

func (p *Plan) addNote(fix, format string, values ...any) {
	p.Notes = append(p.Notes, Note{fmt.Sprintf(format, values...), fix})
}

// planner collects a plan and its record.
type planner struct {
	host    Host
	options Options
	record  *Record
	plan    Plan
}

// newPlanner starts a plan. If an earlier setup was run with --default, the option stays set until
// berth is removed from the engine.
func newPlanner(h Host, engine string, o Options, old *Record) *planner {
	r := Record{Version: recordVersion, Engine: engine}
	if old != nil {
		r = old.clone()
	}
	o.Default = o.Default || r.Default
	r.Default = o.Default
	return &planner{host: h, options: o, record: &r}
}

func (p *planner) finish() Plan {
	if len(p.plan.Changes) > 0 {
		p.plan.Record = p.record
	}
	return p.plan
}

// fileHeader is the first line of files that are berth's own.
func (p *planner) fileHeader() string {
	return fmt.Sprintf("# Written by berth setup %s; berth setup %s --remove takes it away.\n", p.record.Engine, p.record.Engine)
}

// addChange adds the change of a file that is berth's own, if there is one.
func (p *planner) addChange(c Change) { p.addEdit(c, "", nil, nil) }

// addEdit adds the change of a file that is the admin's. base is the file without berth's
// part, keys are what the change sets.
func (p *planner) addEdit(c Change, format string, keys []Key, base []byte) {
	if c.Before.Same(c.After) {
		return
	}
	p.plan.Changes = append(p.plan.Changes, c)
	p.record.addFile(c, format, keys, base)
	p.recordNewDirs(path.Dir(c.Path))
}

// recordNewDirs remembers the directories that have to be made for a path.
func (p *planner) recordNewDirs(dir string) {
	var dirs []string
	for ; !p.host.exists(dir) && !slices.Contains(p.record.Dirs, dir); dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	p.record.Dirs = append(p.record.Dirs, dirs...)
}

// findChange returns the change of the file that a path leads to, nil if there is none.
func (p *Plan) findChange(h Host, name string) *Change {
	if target, err := h.resolve(name); err == nil {
		name = target
	}
	i := slices.IndexFunc(p.Changes, func(c Change) bool { return c.Path == name })
	if i < 0 {
		return nil
	}
	return &p.Changes[i]
}

// planOwnFile plans a file that only berth writes. A file of the same name that berth hasn't
// written is an error.
func (p *planner) planOwnFile(name, text string) error {
	before, err := p.host.ReadFile(name)
	if err != nil {
		return err
	}
	if before.Link != "" {
		return fmt.Errorf("%s is a link to %s, and has to be a file of berth's: remove it", name, before.Link)
	}
	if before.Exists && p.record.file(name) == nil && !bytes.Contains(before.Data, []byte("Written by berth")) && string(before.Data) != text {
		return fmt.Errorf("%s isn't berth's: move it away", name)
	}
	p.addChange(Change{name, before, before.withData([]byte(text))})
	return nil
}

// planLink plans a symbolic link of berth's.
func (p *planner) planLink(name, target string) error {
	before, err := p.host.ReadFile(name)
	if err != nil {
		return err
	}
	if before.Exists && before.Link == "" {
		return fmt.Errorf("%s has to be a link of berth's, and is a file: move it away", name)
	}
	p.addChange(Change{name, before, File{Exists: true, Link: target}})
	return nil
}

// planRuntimeScript plans a script in place of the runtime where berth's configuration is
// not the default one: engines pass neither arguments nor environment variables of ours.
func (p *planner) planRuntimeScript() error {
	if p.options.Config == "" {
		return nil
	}
	if strings.ContainsAny(p.options.Config+p.options.Runtime, "'\n") {
		return fmt.Errorf("the path of the configuration %q can't stand in a script", p.options.Config)
	}
	script := path.Join(p.options.Data, "engines", p.record.Engine, "berth-runtime")
	text := fmt.Sprintf("#!/bin/sh\n# Written by berth setup.\nBERTH_CONFIG='%s' exec '%s' \"$@\"\n", p.options.Config, p.options.Runtime)
	before, err := p.host.ReadFile(script)
	if err != nil {
		return err
	}
	after := before.withData([]byte(text))
	after.Mode = 0o755
	p.addChange(Change{script, before, after})
	p.plan.addNote("", "the runtime reads %s through the script %s, which costs each start a millisecond", p.options.Config, script)
	p.options.Runtime = script
	return nil
}
