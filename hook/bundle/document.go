package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Document is one config.json: its bytes, and a view of those sections that
// berth reads or changes. It is immutable.
type Document struct {
	raw  []byte
	view []byte // raw without the sections of no concern
}

// sections is a tree of the keys that a Document decodes. A nil leaf is decoded
// as a whole. Everything else is carried as it stands.
type sections map[string]sections

func decoded() sections {
	return sections{
		"ociVersion": nil, "root": nil, "hostname": nil, "mounts": nil, "hooks": nil, "annotations": nil,
		"process": {
			"terminal": nil, "user": nil, "args": nil, "env": nil, "cwd": nil,
			"capabilities": nil, "rlimits": nil, "noNewPrivileges": nil,
		},
		"linux": {
			"uidMappings": nil, "gidMappings": nil, "cgroupsPath": nil, "namespaces": nil, "devices": nil,
			"maskedPaths": nil, "readonlyPaths": nil, "rootfsPropagation": nil,
			"resources": {"devices": nil, "cpu": nil},
		},
	}
}

// Parse reads a config.json. It refuses what isn't JSON, what isn't OCI 1.x, and
// keys that the runtime could read differently from berth: doubles, or a known
// name in other letters, where berth looks at all.
func Parse(data []byte) (*Document, error) {
	if err := syntax(data); err != nil {
		return nil, err
	}
	if i := skipSpace(data, 0); data[i] != '{' {
		return nil, errors.New("not a JSON object")
	}
	d := &Document{raw: data, view: prune(data, decoded())}
	c := checker{fields: make(map[reflect.Type]map[string]reflect.Type)}
	if err := c.check(d.view, reflect.TypeFor[specs.Spec](), ""); err != nil {
		return nil, err
	}
	spec, err := d.Spec()
	if err != nil {
		return nil, err
	}
	return d, checkVersion(spec.Version)
}

// Bytes returns the document as it was read. The caller doesn't change them.
func (d *Document) Bytes() []byte { return d.raw }

// Spec decodes the sections of concern, a new copy with each call; the others
// are zero. See [Document.Edit] for which those are.
func (d *Document) Spec() (*specs.Spec, error) {
	spec := new(specs.Spec)
	err := json.Unmarshal(d.view, spec)
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) {
		return nil, fmt.Errorf("%s is a %s, which no %s can be", mistyped.Field, mistyped.Value, mistyped.Type)
	}
	return spec, err
}

// Edit returns the document with the changes that were made to a spec from
// [Document.Spec]. What wasn't changed keeps its bytes: sections that berth
// doesn't know, members it doesn't know inside those that it does, and elements
// of lists. Without a change the document itself comes back.
//
// A change in a section that Spec leaves out, and that the document has, is an
// error: it would drop what is there.
func (d *Document) Edit(spec *specs.Spec) (*Document, error) {
	before, err := d.Spec()
	if err != nil {
		return nil, err
	}
	was, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	now, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(was, now) {
		return d, nil
	}
	raw, err := merge(d.raw, was, now, "")
	if err != nil {
		return nil, err
	}
	return &Document{raw: raw, view: prune(raw, decoded())}, nil
}

// prune copies the wanted sections of an object, doubles and names in other
// letters included, so that the check sees them.
func prune(obj []byte, want sections) []byte {
	out := []byte{'{'}
	for _, m := range members(obj) {
		name, sub, ok := want.lookup(m.key)
		if !ok {
			continue
		}
		value := m.value
		if sub != nil && name == m.key && value[0] == '{' {
			value = prune(value, sub)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, obj[m.start:m.at]...), value...)
	}
	return append(out, '}')
}

func (s sections) lookup(key string) (string, sections, bool) {
	if sub, ok := s[key]; ok {
		return key, sub, true
	}
	for name, sub := range s {
		if strings.EqualFold(name, key) {
			return name, sub, true
		}
	}
	return "", nil, false
}

func checkVersion(v string) error {
	switch {
	case v == "":
		return errors.New("ociVersion is missing: 1.x is supported")
	case v == "1" || strings.HasPrefix(v, "1."):
		return nil
	}
	return fmt.Errorf("OCI version %q is unknown: 1.x is supported", v)
}
