package edit

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// JSON edits JSON objects. A blank text is an object without members. Comments and
// trailing commas are errors, because engines read the file with strict parsers.
type JSON struct{}

// document is a parsed JSON object and the style of its text.
type document struct {
	text []byte
	root hujson.Value
	// unit is one step of indentation. lines means that members stand on lines of their
	// own.
	unit  string
	lines bool
}

// parseJSON parses a text strictly. Errors are of type [*Error].
func parseJSON(text []byte) (*document, error) {
	if IsBlank(text) {
		text = []byte("{}\n")
	}
	if bytes.HasPrefix(text, []byte{0xfe, 0xff}) || bytes.HasPrefix(text, []byte{0xff, 0xfe}) {
		return nil, errorAt(text, 0, "the text is UTF-16, not UTF-8")
	}
	body := bytes.TrimPrefix(text, []byte(byteOrderMark))
	var strict json.RawMessage
	if err := json.Unmarshal(body, &strict); err != nil {
		return nil, syntaxError(text, len(text)-len(body), err)
	}
	root, err := hujson.Parse(body)
	if err != nil {
		return nil, err
	}
	d := &document{text: body, root: root, unit: "  ", lines: true}
	object, ok := root.Value.(*hujson.Object)
	if !ok {
		return nil, errorAt(body, root.StartOffset, "the text is no JSON object")
	}
	if len(object.Members) > 0 {
		first := object.Members[0].Name
		d.lines = bytes.ContainsRune(body[root.StartOffset:root.EndOffset], '\n')
		if indent := indentation(body, first.StartOffset); indent != "" && hasLineEnd(first.BeforeExtra) {
			d.unit = indent
		}
	}
	return d, nil
}

// syntaxError adds the place to an error of encoding/json, whose offset counts the bytes
// that were read. skipped is the length of a byte order mark.
func syntaxError(text []byte, skipped int, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	offset := int(syntax.Offset)
	if !strings.HasPrefix(syntax.Error(), "unexpected end") {
		offset--
	}
	return errorAt(text, skipped+offset, "%s", syntax)
}

// encodeText returns the text of the document after a change, in the style of the original.
func (d *document) encodeText(original []byte) []byte {
	body := d.root.Pack()
	if bytes.HasPrefix(original, []byte(byteOrderMark)) {
		return slices.Concat([]byte(byteOrderMark), body)
	}
	return body
}

// findMember returns the index of a key, -1 if the object lacks it. A key that is there
// twice is an error: parsers take the first one, the last one, or merge both.
func (d *document) findMember(o *hujson.Object, key string) (int, error) {
	found := -1
	for i, m := range o.Members {
		if name, ok := m.Name.Value.(hujson.Literal); !ok || name.String() != key {
			continue
		}
		if found >= 0 {
			return -1, errorAt(d.text, m.Name.StartOffset, "the key %q is there twice", key)
		}
		found = i
	}
	return found, nil
}

// walkPath follows a path of keys. It returns the object of each key, and the index of the
// key in it. The last index is -1 if the path ends early.
func (d *document) walkPath(path []string) (objects []*hujson.Object, indices []int, err error) {
	at := d.root.Value
	for n, key := range path {
		object, ok := at.(*hujson.Object)
		if !ok {
			value := objects[n-1].Members[indices[n-1]].Value
			return nil, nil, errorAt(d.text, value.StartOffset, "%q is no object", path[n-1])
		}
		i, err := d.findMember(object, key)
		if err != nil {
			return nil, nil, err
		}
		objects, indices = append(objects, object), append(indices, i)
		if i < 0 {
			break
		}
		at = object.Members[i].Value.Value
	}
	return objects, indices, nil
}

// Get returns the text of the value at a path of keys. ok is false if there is none.
// A path through a value that is no object is an error.
func (JSON) Get(text []byte, path ...string) (value Raw, ok bool, err error) {
	d, err := parseJSON(text)
	if err != nil {
		return "", false, err
	}
	objects, indices, err := d.walkPath(path)
	if err != nil || indices[len(indices)-1] < 0 {
		return "", false, err
	}
	last := len(indices) - 1
	v := objects[last].Members[indices[last]].Value
	return Raw(d.text[v.StartOffset:v.EndOffset]), true, nil
}

// Set gives the member at a path a value: a [Raw], or anything that encoding/json
// encodes. Missing objects on the way are made; made is their number.
func (JSON) Set(text []byte, value any, path ...string) (after []byte, made int, err error) {
	d, err := parseJSON(text)
	if err != nil {
		return nil, 0, err
	}
	objects, indices, err := d.walkPath(path)
	if err != nil {
		return nil, 0, err
	}
	last := len(indices) - 1
	object, i := objects[last], indices[last]
	made = len(path) - len(indices)
	for n := len(path) - 1; n > last; n-- {
		value = map[string]any{path[n]: value}
	}
	if i < 0 {
		i = d.appendMember(object, path[last], d.offset(objects, indices))
	}
	m := &object.Members[i]
	indent := indentation(d.text, m.Name.StartOffset)
	if gap := string(m.Name.BeforeExtra); strings.Contains(gap, "\n") {
		indent = gap[strings.LastIndexByte(gap, '\n')+1:]
	}
	m.Value.Value, err = d.encode(value, indent, hasLineEnd(object.Members[0].Name.BeforeExtra))
	return d.encodeText(text), made, err
}

// offset returns where the innermost object of a walk starts.
func (d *document) offset(objects []*hujson.Object, indices []int) int {
	if last := len(objects) - 1; last > 0 {
		return objects[last-1].Members[indices[last-1]].Value.StartOffset
	}
	return d.root.StartOffset
}

// appendMember adds a member without a value, spaced as the last one is. offset is where
// the object starts.
func (d *document) appendMember(o *hujson.Object, key string, offset int) (index int) {
	m := hujson.ObjectMember{Name: hujson.Value{Value: hujson.String(key)}}
	root, _ := d.root.Value.(*hujson.Object)
	if len(root.Members) == 0 {
		m.Value.BeforeExtra = []byte(" ")
	} else {
		m.Value.BeforeExtra = slices.Clone(root.Members[0].Value.BeforeExtra)
	}
	switch n := len(o.Members); {
	case n > 1 || n == 1 && hasLineEnd(o.Members[0].Name.BeforeExtra):
		m.Name.BeforeExtra = slices.Clone(o.Members[n-1].Name.BeforeExtra)
	case n == 1: // on one line: as wide as behind a colon
		m.Name.BeforeExtra = slices.Clone(o.Members[0].Value.BeforeExtra)
	case d.lines:
		outer := lineEnd(d.text) + indentation(d.text, offset)
		m.Name.BeforeExtra, o.AfterExtra = []byte(outer+d.unit), []byte(outer)
	default:
		o.AfterExtra = nil
	}
	o.Members = append(o.Members, m)
	return len(o.Members) - 1
}

// encode returns a value as JSON, on lines that are indented or on a single one.
func (d *document) encode(value any, indent string, lines bool) (hujson.ValueTrimmed, error) {
	if raw, ok := value.(Raw); ok {
		return hujson.Literal(raw), nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if lines {
		e.SetIndent(indent, d.unit)
	}
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	text := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return hujson.Literal(bytes.ReplaceAll(text, []byte("\n"), []byte(lineEnd(d.text)))), nil
}

// Delete removes the member at a path, and then up to prune of the objects around it, the
// inner ones first, as long as they are empty. A missing member is not an error.
func (JSON) Delete(text []byte, prune int, path ...string) ([]byte, error) {
	d, err := parseJSON(text)
	if err != nil {
		return nil, err
	}
	objects, indices, err := d.walkPath(path)
	if err != nil || len(indices) < len(path)-prune {
		return text, err
	}
	for n := len(indices) - 1; n >= 0 && n >= len(path)-1-prune; n-- {
		o, i := objects[n], indices[n]
		if i < 0 {
			continue
		}
		if n < len(path)-1 {
			if inner, ok := o.Members[i].Value.Value.(*hujson.Object); !ok || len(inner.Members) > 0 {
				break
			}
		}
		if i == 0 && len(o.Members) > 1 {
			o.Members[1].Name.BeforeExtra = o.Members[0].Name.BeforeExtra
		}
		o.Members = slices.Delete(o.Members, i, i+1)
		if len(o.Members) == 0 {
			o.AfterExtra = nil
		} else {
			o.Members[len(o.Members)-1].Value.AfterExtra = nil // or hujson writes a comma
		}
	}
	return d.encodeText(text), nil
}

// IsEmpty reports whether a text is an object without members.
func (JSON) IsEmpty(text []byte) bool {
	d, err := parseJSON(text)
	if err != nil {
		return false
	}
	object, ok := d.root.Value.(*hujson.Object)
	return ok && len(object.Members) == 0
}

// Equal reports whether two values have the same meaning, however they are written.
func (JSON) Equal(a Raw, b any) bool {
	if raw, ok := b.(Raw); ok {
		b = json.RawMessage(raw)
	}
	text, err := json.Marshal(b)
	var x, y any
	return err == nil && json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal(text, &y) == nil && reflect.DeepEqual(x, y)
}

func hasLineEnd(extra hujson.Extra) bool { return bytes.ContainsRune(extra, '\n') }
