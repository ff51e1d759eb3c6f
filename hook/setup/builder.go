package setup

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

// builder puts a plan together.
type builder struct {
	host    Host
	options Options
	record  *Record
	plan    Plan
}

func newBuilder(h Host, engine string, o Options, old *Record) *builder {
	r := Record{Version: recordVersion, Engine: engine}
	if old != nil {
		r = old.clone()
	}
	o.Default = o.Default || r.Default // until it is taken back
	r.Default = o.Default
	return &builder{host: h, options: o, record: &r}
}

func (b *builder) done() Plan {
	if len(b.plan.Changes) > 0 {
		b.plan.Record = b.record
	}
	return b.plan
}

// header begins files that are berth's own.
func (b *builder) header() string {
	return fmt.Sprintf("# Written by berth setup %s; berth setup %s --remove takes it away.\n", b.record.Engine, b.record.Engine)
}

// change adds what becomes of a file, and of the directories above it, if anything does.
func (b *builder) change(c Change) { b.changeKeys(c, "", nil, nil) }

// changeKeys adds what becomes of a file that is the admin's.
func (b *builder) changeKeys(c Change, format string, keys []Key, base []byte) {
	if c.Before.Same(c.After) {
		return
	}
	b.plan.Changes = append(b.plan.Changes, c)
	b.record.keep(c, format, keys, base)
	b.make(path.Dir(c.Path))
}

// make remembers the directories that are made for one.
func (b *builder) make(dir string) {
	var dirs []string
	for ; !b.host.exists(dir) && !slices.Contains(b.record.Dirs, dir); dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	b.record.Dirs = append(b.record.Dirs, dirs...)
}

// changes says that a file is to be changed.
func (b *builder) changes(name string) bool {
	return slices.ContainsFunc(b.plan.Changes, func(c Change) bool { return c.Path == name })
}

// resolved is the path that a file really has.
func (b *builder) resolved(name string) string {
	if r, err := b.host.resolve(name); err == nil {
		return r
	}
	return name
}

// values plans those of a file that is the admin's.
func (b *builder) values(name, format string, wants []want) error {
	before, target, err := b.host.read(name)
	if err != nil {
		return err
	}
	text, keys, err := formatOf(format).setKeys(before.Data, wants)
	if err != nil {
		return in(target, err)
	}
	if len(keys) == 0 {
		return nil
	}
	base, _, err := b.record.file(target).base(before)
	if err != nil {
		return in(target, err)
	}
	b.changeKeys(Change{target, before, before.with(text)}, format, keys, base)
	return nil
}

// own plans a file that is berth's own.
func (b *builder) own(name, text string) error {
	before, err := b.host.Look(name)
	if err != nil {
		return err
	}
	if before.Link != "" {
		return fmt.Errorf("%s is a link to %s, and shall be a file of berth's: take it away", name, before.Link)
	}
	if before.Exists && b.record.file(name) == nil && !bytes.Contains(before.Data, []byte("Written by berth")) && string(before.Data) != text {
		return fmt.Errorf("%s isn't berth's: move it away", name)
	}
	b.change(Change{name, before, before.with([]byte(text))})
	return nil
}

// link plans a symbolic link of berth's.
func (b *builder) link(name, target string) error {
	before, err := b.host.Look(name)
	if err != nil {
		return err
	}
	if before.Exists && before.Link == "" {
		return fmt.Errorf("%s shall be a link of berth's, and is a file: move it away", name)
	}
	b.change(Change{name, before, File{Exists: true, Link: target}})
	return nil
}

// runtime sees to it that the runtime reads the configuration that it shall: engines
// give it neither words nor variables of ours.
func (b *builder) runtime() error {
	if b.options.Config == "" {
		return nil
	}
	if strings.ContainsAny(b.options.Config+b.options.Runtime, "'\n") {
		return fmt.Errorf("the path of the configuration %q can't stand in a script", b.options.Config)
	}
	script := path.Join(b.options.Data, "engines", b.record.Engine, "berth-runtime")
	text := fmt.Sprintf("#!/bin/sh\n# Written by berth setup.\nBERTH_CONFIG='%s' exec '%s' \"$@\"\n", b.options.Config, b.options.Runtime)
	before, err := b.host.Look(script)
	if err != nil {
		return err
	}
	after := before.with([]byte(text))
	after.Mode = 0o755
	b.change(Change{script, before, after})
	b.plan.note("the runtime reads %s by way of the script %s, which costs each start a millisecond", b.options.Config, script)
	b.options.Runtime = script
	return nil
}

func (r *Record) clone() Record {
	c := *r
	c.Files = slices.Clone(r.Files)
	for i := range c.Files {
		c.Files[i].After = slices.Clone(c.Files[i].After)
		c.Files[i].Keys = slices.Clone(c.Files[i].Keys)
	}
	c.Dirs = slices.Clone(r.Dirs)
	return c
}
