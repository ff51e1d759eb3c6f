package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	fastjson "github.com/berth-gpu/berth/internal/json"
)

// Document is one config.json: its bytes, and the sections of it that berth reads or
// changes. Its content never changes. It is not safe for concurrent use.
type Document struct {
	raw   []byte
	view  []byte // raw without the sections that berth does not read; nil until it is needed
	was   []byte // what Spec has returned, as JSON; nil before its first call
	codec fastjson.Codec
}

// Parse reads a config.json. It refuses what is not JSON or not OCI 1.x, and what a
// runtime could read differently from berth: in the sections that berth reads, equal
// keys, keys that differ from a known one in case only, and strings with what is no character; anywhere,
// strings with a NUL.
func Parse(data []byte) (*Document, error) {
	if err := checkSyntax(data); err != nil {
		return nil, err
	}
	if i := skipSpace(data, 0); data[i] != '{' {
		return nil, errors.New("not a JSON object")
	}
	if err := checkStrings(data); err != nil {
		return nil, err
	}
	names := &schema{}
	d := &Document{raw: data, view: names.pruneSections(data, reflect.TypeFor[view]())}
	if err := names.checkValue(d.view, reflect.TypeFor[view](), ""); err != nil {
		return nil, err
	}
	if err := checkCharacters(d.view); err != nil {
		return nil, err
	}
	version, _ := findMember(d.view, "ociVersion")
	return d, checkVersion(string(version.value))
}

// Bytes returns the text of the document, which the caller must not change.
func (d *Document) Bytes() []byte { return d.raw }

// Spec decodes the sections that berth reads or changes (type view has them) into a new
// specs.Spec, whose other fields are zero.
func (d *Document) Spec() (*specs.Spec, error) {
	v := new(view)
	err := d.decodeSections(v)
	if err == nil && d.was == nil { // while the caller has not changed it yet
		d.was, err = d.codec.Marshal(v)
	}
	if err != nil {
		return nil, err
	}
	return v.toSpec(), nil
}

// rootPath returns the path of the root file system, "" if there is none.
func (d *Document) rootPath() (string, error) {
	var v struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
	}
	err := d.decodeSections(&v)
	return v.Root.Path, err
}

func (d *Document) annotations() (map[string]string, error) {
	var v struct {
		Annotations map[string]string `json:"annotations"`
	}
	err := d.decodeSections(&v)
	return v.Annotations, err
}

// decodeSections decodes the sections that berth reads into v.
func (d *Document) decodeSections(v any) error {
	if d.view == nil {
		d.view = new(schema).pruneSections(d.raw, reflect.TypeFor[view]())
	}
	err := d.codec.Unmarshal(d.view, v)
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) {
		return fmt.Errorf("%s has a value of the wrong type (%s)", mistyped.Field, mistyped.Value)
	}
	return err
}

// Edit returns the document with the changes that the caller has made to a spec from
// [Document.Spec]. All else keeps its bytes: sections that berth does not know, unknown
// members inside known sections, and unchanged elements of lists. Without a change Edit
// returns the document itself.
//
// A change in a section that Spec leaves out is an error.
func (d *Document) Edit(spec *specs.Spec) (*Document, error) {
	if d.was == nil {
		if _, err := d.Spec(); err != nil {
			return nil, err
		}
	}
	after, ok := viewOf(spec)
	if !ok {
		return nil, errors.New("a section was changed that Edit does not carry over")
	}
	now, err := d.codec.Marshal(after)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(d.was, now) {
		return d, nil
	}
	return &Document{raw: mergeValue(d.raw, d.was, now, "")}, nil
}

// pruneSections copies from an object the members that type t has. It also copies equal
// keys and keys that differ in case only, for checkValue.
func (s *schema) pruneSections(obj []byte, t reflect.Type) []byte {
	want := s.fieldsOf(t)
	out := append(make([]byte, 0, len(obj)), '{')
	for m := range eachMember(obj) {
		i := want.indexOf(m.key)
		if i < 0 && want.caseVariant(m.key) == "" {
			continue
		}
		value := m.value
		if i >= 0 && value[0] == '{' {
			if sub, ok := sectionType(want[i].of); ok {
				value = s.pruneSections(value, sub)
			}
		}
		if i >= 0 && want[i].of == reflect.TypeFor[[]specs.LinuxSyscall]() && value[0] == '[' {
			value = joinElements(editedRules(value))
		}
		out = appendMember(out, obj[m.start:m.at], value)
	}
	return append(out, '}')
}

// checkVersion checks ociVersion as it stands in the text, "" if it is missing.
func checkVersion(quoted string) error {
	switch v := strings.Trim(quoted, `"`); {
	case v == "":
		return errors.New("ociVersion is missing: 1.x is supported")
	case quoted[0] != '"':
		return fmt.Errorf("ociVersion can't be %s", quoted)
	case v == "1" || strings.HasPrefix(v, "1."):
		return nil
	default:
		return fmt.Errorf("OCI version %q is unknown: 1.x is supported", v)
	}
}
