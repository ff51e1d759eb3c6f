package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseEnvFile(t *testing.T) {
	lookup := func(name string) (string, bool) { return "of " + name, name == "SET" }
	for _, tt := range []struct {
		name, text string
		want       []string
		fails      string
	}{
		{name: "values as they stand", text: "A=1\nB=\"x y\" # no comment\nC=$A\nD=\nE=a=b", want: []string{"A=1", `B="x y" # no comment`, "C=$A", "D=", "E=a=b"}},
		{name: "comments and empty lines", text: "# A=1\n\n  # B=1\n\t\n A=2", want: []string{"A=2"}},
		{name: "names alone", text: "SET\nUNSET\n", want: []string{"SET=of SET"}},
		{name: "byte order mark, line ends of Windows", text: "\ufeffA=1\r\nB=2\r\n", want: []string{"A=1", "B=2"}},
		{name: "space after the name", text: "A =1", fails: `line 1: the name "A " has white space`},
		{name: "no name", text: "A=1\n=2", fails: `line 2: "=2" has no name`},
		{name: "words", text: "export A=1", fails: `the name "export A" has white space`},
		{name: "zero", text: "A=\x00", fails: "not text"},
		{name: "not UTF-8", text: "A=\xff", fails: "not text"},
		{name: "a line without end", text: "A=" + strings.Repeat("x", 2<<20), fails: "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseEnvFile(strings.NewReader(tt.text), lookup)
			expectOutcome(t, got, tt.want, err, tt.fails)
		})
	}
}

// What is written line by line is read so, whatever the values are.
func TestEnvFileProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,5}=[ -~]{0,9}`), 0, 6).Draw(t, "entries")
		got, err := ParseEnvFile(strings.NewReader(strings.Join(want, "\n")), nil)
		if diff := cmp.Diff(append([]string(nil), want...), got, cmpEmpty); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// cmpEmpty takes no entries and none for the same.
var cmpEmpty = cmp.Transformer("none", func(s []string) string { return strings.Join(s, "\n") })

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A=1\n# x\nB")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := ParseEnvFile(strings.NewReader(text), nil)
		for _, e := range entries {
			if err == nil && !IsEnvEntry(e) {
				t.Errorf("%q gives the entry %q", text, e)
			}
		}
	})
}

// TestManyVariables: an image with half a million variables takes no time that grows with their square.
func TestManyVariables(t *testing.T) {
	var c Container
	for i := range 500_000 {
		c.Env = append(c.Env, fmt.Sprintf("A%d=x", i))
	}
	if env := buildEnvironment(c); len(env) != len(c.Env)+3 || !slices.Equal(env[:len(c.Env)], c.Env) {
		t.Errorf("%d variables", len(env))
	}
}
