package edit

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// TOML edits keys below table headers. It does not edit keys in inline tables, dotted
// keys or arrays of tables: [TOML.Set] is an error there. Each change is verified: the
// new text must mean what the old one meant, apart from the one value.
type TOML struct{}

// statement is a key with its value or a table header, on the lines [start, end).
type statement struct {
	start, end int
	// path is the full path of the key or the table.
	path   []string
	header bool
	// ambiguous statements belong to an array of tables or have a dotted key.
	ambiguous bool
	// valueStart and valueEnd enclose the value of a key.
	valueStart, valueEnd int
}

// DecodeTOML returns the values of a text. Errors are of type [*Error].
func DecodeTOML(text []byte) (map[string]any, error) {
	values := map[string]any{}
	skipped := markLength(text)
	err := toml.Unmarshal(text[skipped:], &values)
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, column := syntax.Position()
		start := 0
		for range line - 1 {
			start += bytes.IndexByte(text[start:], '\n') + 1
		}
		return nil, errorAt(text, start+column-1, "%s", strings.TrimPrefix(syntax.Error(), "toml: "))
	}
	return values, err
}

func markLength(text []byte) int {
	if bytes.HasPrefix(text, []byte(byteOrderMark)) {
		return len(byteOrderMark)
	}
	return 0
}

// parseTOML returns the statements of a text.
func parseTOML(text []byte) (all []statement, err error) {
	if _, err := DecodeTOML(text); err != nil {
		return nil, err
	}
	skipped := markLength(text)
	var p unstable.Parser
	p.Reset(text[skipped:])
	var table []string
	array := false
	for p.NextExpression() {
		node := p.Expression()
		var key []string
		last := 0
		for it := node.Key(); it.Next(); {
			key = append(key, string(it.Node().Data))
			last = skipped + int(it.Node().Raw.Offset+it.Node().Raw.Length)
		}
		s := statement{header: node.Kind != unstable.KeyValue, path: key}
		end := last
		if s.header {
			table, array = key, node.Kind == unstable.ArrayTable || array && len(key) > len(table) && slices.Equal(key[:len(table)], table)
			s.ambiguous = array
		} else {
			s.path, s.ambiguous = slices.Concat(table, key), array || len(key) > 1
			end = skipped + int(node.Raw.Offset+node.Raw.Length)
			s.valueStart = last + len(text[last:]) - len(bytes.TrimLeft(text[last:], " \t="))
			s.valueEnd = s.valueStart + len(bytes.TrimRight(text[s.valueStart:end], " \t"))
		}
		s.start = bytes.LastIndexByte(text[:last], '\n') + 1
		s.end = len(text)
		if n := bytes.IndexByte(text[end:], '\n'); n >= 0 {
			s.end = end + n + 1
		}
		all = append(all, s)
	}
	return all, p.Error()
}

// findStatement returns the index of the key or header at a path, or -1.
func findStatement(all []statement, header bool, path []string) int {
	return slices.IndexFunc(all, func(s statement) bool {
		return s.header == header && !s.ambiguous && slices.Equal(s.path, path)
	})
}

// Get returns the text of the value at a path of keys. ok is false if there is none that
// can be edited.
func (TOML) Get(text []byte, path ...string) (value Raw, ok bool, err error) {
	all, err := parseTOML(text)
	if err != nil {
		return "", false, err
	}
	i := findStatement(all, false, path)
	if i < 0 {
		return "", false, nil
	}
	return Raw(text[all[i].valueStart:all[i].valueEnd]), true, nil
}

// Set gives the key at a path a value: a [Raw], or a string, boolean, number or a list of
// them. A missing table is added at the end. made is how many of the tables around the
// key have no header before the change.
func (TOML) Set(text []byte, value any, path ...string) (after []byte, made int, err error) {
	all, err := parseTOML(text)
	if err != nil {
		return nil, 0, err
	}
	for n := 1; n < len(path); n++ {
		if findStatement(all, true, path[:n]) < 0 {
			made++
		}
	}
	word, err := encodeTOML(value)
	if err != nil {
		return nil, 0, err
	}
	after = setText(text, all, word, path)
	want, err := DecodeTOML(text)
	if err != nil {
		return nil, 0, err
	}
	meaning, err := DecodeTOML([]byte("v = " + word))
	if err != nil {
		return nil, 0, fmt.Errorf("value %s: %w", word, err)
	}
	putValue(want, meaning["v"], path)
	if got, err := DecodeTOML(after); err != nil || !reflect.DeepEqual(got, want) {
		return nil, 0, fmt.Errorf("%s can't be set: it stands in an inline table or behind a dotted key", keyText(path...))
	}
	return after, made, nil
}

// setText replaces the value of a key, or adds the key to its table, or the table to the
// text.
func setText(text []byte, all []statement, word string, path []string) []byte {
	if i := findStatement(all, false, path); i >= 0 {
		return slices.Concat(text[:all[i].valueStart], []byte(word), text[all[i].valueEnd:])
	}
	table, newline := path[:len(path)-1], lineEnd(text)
	line := keyText(path[len(path)-1]) + " = " + word + newline
	at := findStatement(all, true, table)
	lead := ""
	if len(text) > 0 && text[len(text)-1] != '\n' {
		lead = newline
	}
	if at < 0 && len(table) > 0 {
		if len(text) > 0 {
			lead += newline
		}
		return slices.Concat(text, []byte(lead+"["+keyText(table...)+"]"+newline+line))
	}
	// Behind the last key of the table. The root table ends at the first header.
	offset, indent := len(text), ""
	if at >= 0 {
		offset, indent = all[at].end, indentation(text, all[at].start)
	} else if len(all) > 0 {
		offset = all[0].start
	}
	for _, s := range all[at+1:] {
		if s.header {
			break
		}
		offset, indent = s.end, indentation(text, s.start)
	}
	if offset < len(text) || bytes.HasSuffix(text, []byte("\n")) {
		lead = ""
	}
	return slices.Concat(text[:offset], []byte(lead+indent+line), text[offset:])
}

// Appended returns the text of the list at a path with one more string at its end. A
// missing list is empty.
func (t TOML) Appended(text []byte, word string, path ...string) (Raw, error) {
	list, ok, err := t.Get(text, path...)
	if err != nil || !ok {
		return Raw(TOMLList([]string{word})), err
	}
	const key = "v = "
	var p unstable.Parser
	p.Reset([]byte(key + list))
	if !p.NextExpression() || p.Expression().Value().Kind != unstable.Array {
		return "", fmt.Errorf("%s is no list", keyText(path...))
	}
	end := 0
	for it := p.Expression().Value().Children(); it.Next(); {
		end = int(it.Node().Raw.Offset+it.Node().Raw.Length) - len(key)
	}
	if end <= 0 {
		return Raw(TOMLList([]string{word})), nil
	}
	return list[:end] + ", " + Raw(TOMLString(word)) + list[end:], nil
}

// Delete removes the key at a path, and then up to prune of the tables around it, the
// inner ones first, as long as they have a header and no keys. A missing key is not an
// error.
func (TOML) Delete(text []byte, prune int, path ...string) ([]byte, error) {
	all, err := parseTOML(text)
	if err != nil {
		return nil, err
	}
	if i := findStatement(all, false, path); i >= 0 {
		text = slices.Concat(text[:all[i].start], text[all[i].end:])
	}
	for n := 1; n <= prune; n++ {
		if all, err = parseTOML(text); err != nil {
			return nil, err
		}
		i := findStatement(all, true, path[:len(path)-n])
		if i < 0 || i+1 < len(all) && !all[i+1].header {
			break
		}
		start := all[i].start
		if before := text[:start]; bytes.HasSuffix(before, []byte("\n\n")) || bytes.HasSuffix(before, []byte("\n\r\n")) {
			start = bytes.LastIndexByte(before[:len(before)-1], '\n') + 1
		}
		text = slices.Concat(text[:start], text[all[i].end:])
	}
	return text, nil
}

// IsEmpty reports whether a text is blank. A file of comments isn't empty: the admin has
// written them.
func (TOML) IsEmpty(text []byte) bool { return IsBlank(text) }

// Equal reports whether two values have the same meaning, however they are written.
func (TOML) Equal(a Raw, b any) bool {
	word, err := encodeTOML(b)
	if err != nil {
		return false
	}
	x, err := DecodeTOML([]byte("v = " + a))
	y, err2 := DecodeTOML([]byte("v = " + word))
	return err == nil && err2 == nil && reflect.DeepEqual(x, y)
}

// encodeTOML returns the text of a [Raw], a string, a boolean, a number, or a list.
func encodeTOML(value any) (string, error) {
	switch v := value.(type) {
	case Raw:
		return string(v), nil
	case string:
		return TOMLString(v), nil
	case []string:
		return TOMLList(v), nil
	case bool, int, int64:
		return fmt.Sprint(v), nil
	case []any:
		var words []string
		for _, inner := range v {
			word, err := encodeTOML(inner)
			if err != nil {
				return "", err
			}
			words = append(words, word)
		}
		return "[" + strings.Join(words, ", ") + "]", nil
	}
	return "", fmt.Errorf("no TOML for a %T", value)
}

// TOMLList returns the text of a list of strings, on one line.
func TOMLList(values []string) string {
	var words []string
	for _, v := range values {
		words = append(words, TOMLString(v))
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// TOMLString returns the text of a string in double quotes.
func TOMLString(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// keyText returns a path as a dotted key.
func keyText(path ...string) string {
	const bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	var words []string
	for _, w := range path {
		if w == "" || strings.Trim(w, bare) != "" {
			w = TOMLString(w)
		}
		words = append(words, w)
	}
	return strings.Join(words, ".")
}

// putValue sets the value at a path of decoded values.
func putValue(values map[string]any, value any, path []string) {
	for _, key := range path[:len(path)-1] {
		inner, ok := values[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[key] = inner
		}
		values = inner
	}
	values[path[len(path)-1]] = value
}
