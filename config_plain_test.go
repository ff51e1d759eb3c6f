package berth

import (
	"os"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
)

// tomlConfig is what the real parser makes of a configuration.
func tomlConfig(text string) (c Config, ok bool) {
	meta, err := toml.Decode(text, &c)
	return c, err == nil && len(meta.Undecoded()) == 0
}

// same compares what both parsers make of a text that plainConfig accepts.
func same(t *testing.T, text string) (plain bool) {
	t.Helper()
	var got Config
	if !plainConfig([]byte(text), &got) {
		return false
	}
	want, ok := tomlConfig(text)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Config{})); !ok || d != "" {
		t.Errorf("%q: the real parser accepts: %v; -real +plain:\n%s", text, ok, d)
	}
	return true
}

func TestPlainConfig(t *testing.T) {
	shipped, err := os.ReadFile("packaging/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, text string
		plain      bool
	}{
		{"as it is shipped", string(shipped), true},
		{"empty", "", true},
		{"all kinds", "\n  state=\"/a\"\t# b\n[policy] # c\nguard = false\nenvironment = true\ncdi = [ \"a/b\" , \"c\", ]\nfeatures = []", true},
		{"escape", `state = "/a\u0041"`, false},
		{"literal string", `state = '/a'`, false},
		{"many lines", "cdi = [\n]", false},
		{"table in a key", `host.dev = "/dev"`, false},
		{"quoted key", `"state" = "/a"`, false},
		{"key twice", "state = \"/a\"\nstate = \"/b\"", false},
		{"table twice", "[host]\n[host]", false},
		{"unknown key", `stat = "/a"`, false},
		{"unknown table", "[hosts]", false},
		{"key in other letters", `State = "/a"`, false},
		{"wrong type", "state = true", false},
		{"a table's name as a key", `host = "x"`, false},
		{"no value", "state =", false},
		{"more after the value", `state = "/a" "/b"`, false},
		{"no end", `state = "/a`, false},
		{"list without a comma", "[host]\ncdi = [\"a\" \"b\"]", false},
		{"control character", "state = \"\x01\"", false},
		{"carriage return", "state = \"/a\"\r\n", false},
		{"not UTF-8", "# \xff", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := same(t, tt.text); got != tt.plain {
				t.Errorf("plain: %v, want %v", got, tt.plain)
			}
		})
	}
}

// FuzzPlainConfig holds the short way against the real parser.
func FuzzPlainConfig(f *testing.F) {
	f.Add("state = \"/a\" # b\n[policy]\nguard = false\ncdi = [\"a/b\", \"c\",]\n[host]\ncdi = []\n")
	f.Add("[host]\ndev=\"/x\"\n\n\t[policy]\nenvironment=true#x\n")
	f.Add("state = \"\"\"x\"\"\"\nhook = \"\"\"\"\n")
	f.Fuzz(func(t *testing.T, text string) { same(t, text) })
}
