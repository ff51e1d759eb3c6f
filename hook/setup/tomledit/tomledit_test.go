package tomledit

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const cri = "plugins.\"io.containerd.grpc.v1.cri\""

func TestSet(t *testing.T) {
	at := func(words ...string) []string {
		return append([]string{"plugins", "io.containerd.grpc.v1.cri", "containerd"}, words...)
	}
	for _, c := range []struct {
		name, text string
		value      Raw
		path       []string
		want       string
	}{
		{"nothing", "", `"x"`, []string{"a"}, "a = \"x\"\n"},
		{"a table of nothing", "", `1`, []string{"a", "b c"}, "[a]\n\"b c\" = 1\n"},
		{"a root key behind the others", "# one\nversion = 2 # two\n\n[a]\nb = 1\n", `["x"]`, []string{"imports"}, "# one\nversion = 2 # two\nimports = [\"x\"]\n\n[a]\nb = 1\n"},
		{"a root key before tables", "# one\n[a]\nb = 1\n", `1`, []string{"version"}, "# one\nversion = 1\n[a]\nb = 1\n"},
		{"a root key of comments", "# one\n# two", `1`, []string{"version"}, "# one\n# two\nversion = 1\n"},
		{"a value, its comment stays", "[a]\n  b   =   'x'  # why\nc = 2\n", `"y"`, []string{"a", "b"}, "[a]\n  b   =   \"y\"  # why\nc = 2\n"},
		{"a list on lines", "a = [ # x\n  1, # ]\n  2\n] # y\nb = 1\n", `[]`, []string{"a"}, "a = [] # y\nb = 1\n"},
		{"strings on lines", "[a]\nx = \"\"\"\n[b]\nc = \\\"\"\"\"\ny = '''\nz=1'''\n", `1`, []string{"a", "y"}, "[a]\nx = \"\"\"\n[b]\nc = \\\"\"\"\"\ny = 1\n"},
		{"CRLF", "version = 2\r\n[a]\r\n\tb = 1\r\n", `1`, []string{"a", "c"}, "version = 2\r\n[a]\r\n\tb = 1\r\n\tc = 1\r\n"},
		{"no end of line", "version = 2", `3`, []string{"a", "c"}, "version = 2\n\n[a]\nc = 3\n"},
		{"a byte order mark", "\ufeffversion = 2\n", `3`, []string{"version"}, "\ufeffversion = 3\n"},
		{"into a table with others", "[" + cri + ".containerd]\n    snapshotter = \"x\"\n\n[z]\n", `"berth"`, at("default_runtime_name"), "[" + cri + ".containerd]\n    snapshotter = \"x\"\n    default_runtime_name = \"berth\"\n\n[z]\n"},
		{"into a table of nothing", "[plugins]\n  [ plugins . 'io.containerd.grpc.v1.cri' . containerd ] # x\n", `"berth"`, at("default_runtime_name"), "[plugins]\n  [ plugins . 'io.containerd.grpc.v1.cri' . containerd ] # x\n  default_runtime_name = \"berth\"\n"},
		{"a table below another", "[" + cri + "]\n  a = 1\n", `"x"`, at("runtimes", "berth", "runtime_type"), "[" + cri + "]\n  a = 1\n\n[" + cri + ".containerd.runtimes.berth]\nruntime_type = \"x\"\n"},
		{"dates", "a = 1979-05-27 07:32:00Z # x\nb = 1\n", `2`, []string{"b"}, "a = 1979-05-27 07:32:00Z # x\nb = 2\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Set([]byte(c.text), c.value, c.path...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSetRefuses: what it would break it doesn't touch.
func TestSetRefuses(t *testing.T) {
	for _, text := range []string{"a = {b = 1}\n", "a.b = 1\n", "[[a]]\nb = 1\n", "a = 1\n"} {
		if got, err := Set([]byte(text), "2", "a", "c"); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got, err := Set([]byte("a = {b = {}}\n"), "2", "a", "b", "c", "d"); err == nil {
		t.Errorf("it became %q", got)
	}
	if got, err := Set([]byte("a = 1\n"), "2\nb = 3", "a"); err == nil {
		t.Errorf("it became %q", got)
	}
}

func TestDelete(t *testing.T) {
	for _, c := range []struct {
		name, text string
		path       []string
		want       string
	}{
		{"a key", "a = 1\nb = [\n 1\n] # x\nc = 3\n", []string{"b"}, "a = 1\nc = 3\n"},
		{"a table of nothing", "[a]\nx = 1\n\n[b]\n\n[c]\n", []string{"b"}, "[a]\nx = 1\n\n[c]\n"},
		{"not a table of something", "[b]\nx = 1\n", []string{"b"}, "[b]\nx = 1\n"},
		{"nothing", "[b]\nx = 1\n", []string{"c", "d"}, "[b]\nx = 1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := Delete([]byte(c.text), c.path...); err != nil || string(got) != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestAppend(t *testing.T) {
	for _, c := range []struct{ name, list, want string }{
		{"nothing", "", `["x"]`},
		{"a list of nothing", "[ ]", `["x"]`},
		{"on one line", `["a", 'b']`, `["a", 'b', "x"]`},
		{"with a comma", `["a",]`, `["a", "x",]`},
		{"a comma in a string", `["a,]"]`, `["a,]", "x"]`},
		{"on lines", "[\n    \"a\"\n]", "[\n    \"a\",\n    \"x\"\n]"},
		{"on lines, with commas", "[\n\t\"a\", # , one\n\t# two\n  ]", "[\n\t\"a\", # , one\n\t# two\n\t\"x\",\n  ]"},
		{"on lines, a remark without a comma", "[\n\t\"a\" # one\n]", "[\n\t\"a\", # one\n\t\"x\"\n]"},
		{"CRLF", "[\r\n  \"a\",\r\n]", "[\r\n  \"a\",\r\n  \"x\",\r\n]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Append(Raw(c.list), "x"); string(got) != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	_, err := Decode([]byte("version = 2\n[ä\nx = 1\n"))
	var got *Error
	if !errors.As(err, &got) || got.Line != 2 || got.Column != 2 {
		t.Errorf("got %v", err)
	}
}

// FuzzSet: a value that is set means what it says, all else what it meant, and taking it
// away gives the same bytes.
func FuzzSet(f *testing.F) {
	for _, text := range []string{"", "# x", "version = 2\n[a]\n  b = 1\n", "a = [1, [\"#\"], {b = 2}] # x\n[b.'c d']\nx = '''\n'''\n[[z]]\n", "[a]\r\n[a.b]\r\nc = \"\"\"\"x\"\"\"\"\r\n", "a.b=1\n", "\ufeffa=1"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := []string{"a", "b", "berth"}
		before, err := Decode(text)
		if err != nil || has(before, path) {
			return
		}
		after, err := Set(text, `["x", 1]`, path...)
		if err != nil {
			return // it says so
		}
		back, err := Delete(after, path...)
		if err == nil && !Has(text, path[:2]...) {
			back, err = Delete(back, path[:2]...)
		}
		ended := append(bytes.Clone(text), '\n')
		if err != nil || !bytes.Equal(back, text) && !bytes.Equal(back, ended) && !bytes.Equal(back, bytes.ReplaceAll(ended, []byte("\n"), []byte("\r\n"))) {
			if got, err := Decode(back); err != nil || !reflect.DeepEqual(got, before) {
				t.Fatalf("%q became %q and then %q: %v", text, after, back, err)
			}
		}
	})
}
