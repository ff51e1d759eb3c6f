package edit

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestJSONSet: the rest of the text stays byte for byte, and added text has its style.
func TestJSONSet(t *testing.T) {
	runtime := map[string]string{"path": "/usr/bin/berth-runtime"}
	path := []string{"runtimes", "berth"}
	for _, c := range []struct {
		name, text string
		value      any
		path       []string
		want       string
	}{
		{"an empty object", "{}", runtime, path, "{\n  \"runtimes\": {\n    \"berth\": {\n      \"path\": \"/usr/bin/berth-runtime\"\n    }\n  }\n}"},
		{"an empty object on two lines", "{\n}\n", true, []string{"a"}, "{\n  \"a\": true\n}\n"},
		{"minified", `{"a":1,"b":[{}]}`, runtime, path, `{"a":1,"b":[{}],"runtimes":{"berth":{"path":"/usr/bin/berth-runtime"}}}`},
		{"one line with spaces", `{ "a": 1, "b": 2 }`, runtime, path, `{ "a": 1, "b": 2, "runtimes": {"berth":{"path":"/usr/bin/berth-runtime"}} }`},
		{"one member on one line", `{"a": 1}`, 2, []string{"b"}, `{"a": 1, "b": 2}`},
		{
			"four spaces", "{\n    \"a\": {\n        \"b\": 1\n    }\n}\n", runtime, path,
			"{\n    \"a\": {\n        \"b\": 1\n    },\n    \"runtimes\": {\n        \"berth\": {\n            \"path\": \"/usr/bin/berth-runtime\"\n        }\n    }\n}\n",
		},
		{"tabs and CRLF", "{\r\n\t\"a\": 1\r\n}\r\n", map[string]int{"x": 1}, []string{"b"}, "{\r\n\t\"a\": 1,\r\n\t\"b\": {\r\n\t\t\"x\": 1\r\n\t}\r\n}\r\n"},
		{"a byte order mark", "\ufeff{\"a\":1}", 2, []string{"b"}, "\ufeff{\"a\":1,\"b\":2}"},
		{"no space about colons", "{\n \"a\":1\n}", 2, []string{"b"}, "{\n \"a\":1,\n \"b\":2\n}"},
		{"a replaced value", "{\n  \"a\": 1, \"b\" : [ 1,\n2 ]\n}", "x<y", []string{"b"}, "{\n  \"a\": 1, \"b\" : \"x<y\"\n}"},
		{"into an object that is there", `{"runtimes": {"nvidia": {"path": "x"}}, "z": 1}`, runtime, path, `{"runtimes": {"nvidia": {"path": "x"}, "berth": {"path":"/usr/bin/berth-runtime"}}, "z": 1}`},
		{"an inner object that is empty", "{\n  \"runtimes\": { },\n  \"a\": 1\n}", 1, path, "{\n  \"runtimes\": {\n    \"berth\": 1\n  },\n  \"a\": 1\n}"},
		{"an inner line of a longer text", "{\n  \"runtimes\": {\"nvidia\": 1},\n  \"a\": 1\n}", 1, path, "{\n  \"runtimes\": {\"nvidia\": 1, \"berth\": 1},\n  \"a\": 1\n}"},
		{"names of all kinds", "{\"Führung\":\"\\u00e9\\\"}{\",\"b\":\"日本\"}", 1, []string{"c"}, "{\"Führung\":\"\\u00e9\\\"}{\",\"b\":\"日本\",\"c\":1}"},
		{"an escaped key", `{"runtim\u0065s":{"a":1}}`, 1, path, `{"runtim\u0065s":{"a":1,"berth":1}}`},
		{"text that is written as it is", `{"a":1}`, Raw("{ \"x\" :1}"), []string{"a"}, `{"a":{ "x" :1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := JSON{}.Set([]byte(c.text), c.value, c.path...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSONDelete(t *testing.T) {
	for _, c := range []struct {
		name, text string
		path       []string
		want       string
	}{
		{"the first", "{\n  \"a\": 1,\n  \"b\": 2\n}", []string{"a"}, "{\n  \"b\": 2\n}"},
		{"the last", "{\n  \"a\": 1,\n  \"b\": 2\n}\n", []string{"b"}, "{\n  \"a\": 1\n}\n"},
		{"the last, with a space before the comma", `{"a":1 , "b":2}`, []string{"b"}, `{"a":1}`},
		{"one between", `{"a":1, "b":2, "c":3}`, []string{"b"}, `{"a":1, "c":3}`},
		{"the only one", "{\n  \"a\": 1\n}", []string{"a"}, "{}"},
		{"an inner one", `{"x":{"a":1,"b":2}}`, []string{"x", "a"}, `{"x":{"b":2}}`},
		{"one that isn't there", `{"x":{"a":1}}`, []string{"x", "b"}, `{"x":{"a":1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := JSON{}.Delete([]byte(c.text), 0, c.path...)
			if err != nil || string(got) != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// TestJSONErrors: each error has its line and column.
func TestJSONErrors(t *testing.T) {
	for _, c := range []struct {
		name, text   string
		line, column int
		reason       string
	}{
		{"a comment", "{\n  \"a\": 1, // one\n}", 2, 11, "invalid character '/' looking for beginning of object key string"},
		{"a comma too many", "{\n  \"ä\": 1,\n}\n", 3, 1, "invalid character '}' looking for beginning of object key string"},
		{"a comma too few", "{\n\t\"ä\": 1 \"b\": 2}", 2, 9, "invalid character '\"' after object key:value pair"},
		{"an end too early", "{\"a\": {", 1, 8, "unexpected end of JSON input"},
		{"behind the end", "{}\n}", 2, 1, "invalid character '}' after top-level value"},
		{"an array", "\n []", 2, 2, "the text is no JSON object"},
		{"null", "null", 1, 1, "the text is no JSON object"},
		{"a comment alone", "# x", 1, 1, "invalid character '#' looking for beginning of value"},
		{"through what is no object", `{"runtimes":1}`, 1, 13, `"runtimes" is no object`},
		{"UTF-16", "\xff\xfe{\x00}\x00", 1, 1, "the text is UTF-16, not UTF-8"},
		{"a key twice", "{\"a\": 1,\n \"runtimes\": {}, \"runtimes\": {}}", 2, 18, `the key "runtimes" is there twice`},
		{"a key twice, one escaped", "{\"runtimes\": {}, \"runtim\\u0065s\": {}}", 1, 18, `the key "runtimes" is there twice`},
		{"no object", "{\n \"runtimes\": [1]}", 2, 14, `"runtimes" is no object`},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := &Error{c.line, c.column, c.reason}
			_, _, err := JSON{}.Get([]byte(c.text), "runtimes", "berth")
			_, _, err2 := JSON{}.Set([]byte(c.text), 1, "runtimes", "berth")
			_, err3 := JSON{}.Delete([]byte(c.text), 0, "runtimes", "berth")
			for _, err := range []error{err, err2, err3} {
				var got *Error
				if !errors.As(err, &got) || *got != *want {
					t.Errorf("got %v, want %v", err, want)
				}
			}
		})
	}
}

// FuzzSet: a value that is set is there, everything else is as it was, and taking it away
// gives the same bytes again, but for white space in an object of nothing.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{"{}", "{ }", `{"a":1}`, "{\n\t\"a\": [1, {\"b\": null}],\r\n \"runtimes\": {}}", "\ufeff{\"runtimes\":{\"berth\":1}}", `{"a":"\"}{"}`, "{\"a\":1\n,\"b\":2}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		editor := JSON{}
		before, had, err := editor.Get(text, "runtimes", "berth")
		if err != nil || IsBlank(text) {
			return
		}
		after, made, err := editor.Set(text, map[string]string{"path": "x"}, "runtimes", "berth")
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if got, ok, err := editor.Get(after, "runtimes", "berth"); !ok || err != nil || !editor.Equal(got, Raw(`{"path":"x"}`)) {
			t.Fatalf("%q: %q has %q, %v", text, after, got, err)
		}
		var back []byte
		if had {
			back, _, err = editor.Set(after, before, "runtimes", "berth")
		} else {
			back, err = editor.Delete(after, made, "runtimes", "berth")
		}
		if err != nil {
			t.Fatalf("%q: %v", after, err)
		}
		if !bytes.Equal(back, text) && !bytes.Equal(compact(t, back), compact(t, text)) {
			t.Fatalf("%q became %q and then %q", text, after, back)
		}
		if len(compact(t, text)) > 2 && !emptyRuntimes(text) && !bytes.Equal(back, text) {
			t.Fatalf("%q became %q and then %q", text, after, back)
		}
	})
}

func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, bytes.TrimPrefix(text, []byte(byteOrderMark))); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return b.Bytes()
}

func emptyRuntimes(text []byte) bool {
	editor := JSON{}
	value, ok, err := editor.Get(text, "runtimes")
	return ok && err == nil && editor.IsEmpty([]byte(value))
}
