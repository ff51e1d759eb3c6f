package edit

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const cri = "plugins.\"io.containerd.grpc.v1.cri\""

func TestTOMLSet(t *testing.T) {
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
			editor := TOML{}
			got, _, err := editor.Set([]byte(c.text), c.value, c.path...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTOMLRefuses: Set refuses keys that it can't change safely.
func TestTOMLRefuses(t *testing.T) {
	for _, c := range []struct {
		text  string
		value Raw
		path  []string
	}{
		{"a = {b = 1}\n", "2", []string{"a", "c"}},
		{"a.b = 1\n", "2", []string{"a", "c"}},
		{"[[a]]\nb = 1\n", "2", []string{"a", "c"}},
		{"[[a]]\n[a.b]\nc = 1\n", "2", []string{"a", "b", "c"}},
		{"a = 1\n", "2", []string{"a", "c"}},
		{"a = {b = {}}\n", "2", []string{"a", "b", "c", "d"}},
		{"a.b.c = 1\n", "2", []string{"a", "b", "d"}},
		{"a = 1\n", "2\nb = 3", []string{"a"}},
	} {
		editor := TOML{}
		if got, _, err := editor.Set([]byte(c.text), c.value, c.path...); err == nil {
			t.Errorf("%q became %q", c.text, got)
		}
	}
}

func TestTOMLDelete(t *testing.T) {
	for _, c := range []struct {
		name, text string
		prune      int
		path       []string
		want       string
	}{
		{"a key", "a = 1\nb = [\n 1\n] # x\nc = 3\n", 0, []string{"b"}, "a = 1\nc = 3\n"},
		{"a table of nothing", "[a]\nx = 1\n\n[b]\n\n[c]\n", 1, []string{"b", "gone"}, "[a]\nx = 1\n\n[c]\n"},
		{"not a table of something", "[b]\nx = 1\n", 1, []string{"b", "gone"}, "[b]\nx = 1\n"},
		{"a key and its table", "[a]\nx = 1\n\n[a.b]\ny = 1\n", 2, []string{"a", "b", "y"}, "[a]\nx = 1\n"},
		{"a key and its tables", "[a]\n\n[a.b]\ny = 1\n", 2, []string{"a", "b", "y"}, ""},
		{"nothing", "[b]\nx = 1\n", 0, []string{"c", "d"}, "[b]\nx = 1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			editor := TOML{}
			if got, err := editor.Delete([]byte(c.text), c.prune, c.path...); err != nil || string(got) != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestTOMLAppended(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", `["x"]`},
		{"a list of nothing", "v = [ ]\n", `["x"]`},
		{"on one line", "v = [\"a\", 'b']\n", `["a", 'b', "x"]`},
		{"with a comma", "v = [\"a\",] # b\n", `["a", "x",]`},
		{"a comma in a string", "v = [\"a,]\"]", `["a,]", "x"]`},
		{"on lines", "v = [\n    \"a\"\n]", "[\n    \"a\", \"x\"\n]"},
		{"on lines, with commas", "v = [\n\t\"a\", # , one\n\t# two\n  ]", "[\n\t\"a\", \"x\", # , one\n\t# two\n  ]"},
		{"on lines, a remark without a comma", "v = [\n\t\"a\" # one\n]", "[\n\t\"a\", \"x\" # one\n]"},
		{"CRLF", "v = [\r\n  \"a\",\r\n]", "[\r\n  \"a\", \"x\",\r\n]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			editor := TOML{}
			got, err := editor.Appended([]byte(c.text), "x", "v")
			if err != nil || string(got) != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
			if _, _, err := editor.Set([]byte(c.text), got, "v"); err != nil {
				t.Error(err)
			}
		})
	}
	editor := TOML{}
	if got, err := editor.Appended([]byte("v = 1\n"), "x", "v"); err == nil {
		t.Errorf("a number became %q", got)
	}
}

func TestTOMLErrors(t *testing.T) {
	for text, want := range map[string]Error{"version = 2\n[ä\nx = 1\n": {Line: 2, Column: 2}, "v = \"\x00\"\n": {Line: 1, Column: 6}, "v = \"ä\xff\"\n": {Line: 1, Column: 7}} {
		_, err := DecodeTOML([]byte(text))
		var got *Error
		if !errors.As(err, &got) || got.Line != want.Line || got.Column != want.Column {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// FuzzTOML: a value that is set means what it says, all else what it meant, and deleting
// it gives the same bytes.
func FuzzTOML(f *testing.F) {
	for _, text := range []string{"", "# x", "version = 2\n[a]\n  b = 1\n", "a = [1, [\"#\"], {b = 2}] # x\n[b.'c d']\nx = '''\n'''\n[[z]]\n", "[a]\r\n[a.b]\r\nc = \"\"\"\"x\"\"\"\"\r\n", "a.b=1\n", "\ufeffa=1"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path, editor := []string{"a", "b", "berth"}, TOML{}
		before, err := DecodeTOML(text)
		if err != nil {
			return
		}
		if _, had, _ := editor.Get(text, path...); had {
			return
		}
		after, made, err := editor.Set(text, Raw(`["x", 1]`), path...)
		if err != nil {
			return // it says so
		}
		back, err := editor.Delete(after, made, path...)
		ended := append(bytes.Clone(text), '\n')
		if err != nil || !bytes.Equal(back, text) && !bytes.Equal(back, ended) && !bytes.Equal(back, bytes.ReplaceAll(ended, []byte("\n"), []byte("\r\n"))) {
			if got, err := DecodeTOML(back); err != nil || !reflect.DeepEqual(got, before) {
				t.Fatalf("%q became %q and then %q: %v", text, after, back, err)
			}
		}
	})
}
