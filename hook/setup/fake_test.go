package setup

import (
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
)

// machine is a host in memory: files by path, links as "-> TARGET".
type machine map[string]string

func (m machine) host(version string) Host {
	files := fstest.MapFS{}
	for name, text := range m {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o640}
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			f.Data, f.Mode = []byte(target), 0o777|fs.ModeSymlink
		}
		files[fsPath(name)] = f
	}
	return Host{FS: files, Version: version, Find: func(name string) string { return "/usr/sbin/" + name }}
}

// with is the machine after a plan.
func (m machine) with(t *testing.T, p Plan) machine {
	t.Helper()
	after := maps.Clone(m)
	for _, c := range p.Changes {
		now, err := m.host("").ReadFile(c.Path)
		if err != nil || !now.Same(c.Before) {
			t.Fatalf("%s isn't %q: %v", c.Path, c.Before.Data, err)
		}
		switch {
		case !c.After.Exists:
			delete(after, c.Path)
		case c.After.Link != "":
			after[c.Path] = "-> " + c.After.Link
		default:
			if want := map[bool]fs.FileMode{true: 0o640, false: 0o644}[c.Before.Exists]; c.After.Mode != want && !strings.HasPrefix(string(c.After.Data), "#!") {
				t.Errorf("%s gets the permissions %o, not %o", c.Path, c.After.Mode, want)
			}
			after[c.Path] = string(c.After.Data)
		}
	}
	if p.Record != nil {
		text, err := p.Record.Encode()
		if err != nil {
			t.Fatal(err)
		}
		after[RecordPath("/data", p.Record.Engine)] = string(text)
	}
	return after
}

func (m machine) record(t *testing.T, engine string) *Record {
	t.Helper()
	r, err := LoadRecord(m.host("").FS, "/data", engine)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var usual = Options{Runtime: "/usr/bin/berth-runtime", Hook: "/usr/bin/berth-hook", Data: "/data"}

func withDefault() Options {
	o := usual
	o.Default = true
	return o
}

// set sets an engine up, and checks that a second time there is nothing to do.
func (m machine) set(t *testing.T, engine, version string, o Options) (machine, Plan) {
	t.Helper()
	p, err := PlanSetup(engine, m.host(version), o, m.record(t, engine))
	if err != nil {
		t.Fatal(err)
	}
	after := m.with(t, p)
	again, err := PlanSetup(engine, after.host(version), o, after.record(t, engine))
	if err != nil || len(again.Changes) > 0 {
		t.Errorf("a second time: %+v, %v", again.Changes, err)
	}
	return after, p
}

// unset takes it back.
func (m machine) unset(t *testing.T, engine string) (machine, Plan) {
	t.Helper()
	p, err := PlanRemoval(m.host(""), m.record(t, engine))
	if err != nil {
		t.Fatal(err)
	}
	after := m.with(t, p)
	delete(after, RecordPath("/data", engine))
	return after, p
}

// noteText is what the admin reads of a plan's notes.
func noteText(p Plan) string {
	var all []string
	for _, n := range p.Notes {
		all = append(all, n.String())
	}
	return strings.Join(all, "\n")
}
