package batch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newSource(linked bool, values ...string) Source {
	s := Source{Linked: linked}
	for _, v := range values {
		s.Rows = append(s.Rows, Row{Values: []string{v}})
	}
	return s
}

func TestCombine(t *testing.T) {
	rows, err := Combine([]Source{newSource(false, "a", "b"), newSource(false, "1", "2", "3"), newSource(true, "x", "y")})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, strings.Join(r.Values, ""))
	}
	if diff := cmp.Diff([]string{"a1x", "a2y", "a3x", "b1x", "b2y", "b3x"}, got); diff != "" {
		t.Error(diff)
	}
	thousand := newSource(false, make([]string, 1000)...)
	for want, sources := range map[string][]Source{
		"no arguments were given":        nil,
		":::+ has no source before it":   {newSource(true, "a")},
		"source 2 of arguments is empty": {newSource(false, "a"), newSource(false)},
		"more than 1000000 tasks":        {thousand, thousand, newSource(false, "a", "b")},
	} {
		if _, err := Combine(sources); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestFill(t *testing.T) {
	row := Row{Names: []string{"", "lr"}, Values: []string{"/data/a.tar.gz", "0.1"}}
	for words, want := range map[string]string{
		"echo":                        "echo|/data/a.tar.gz|0.1",
		"echo {}":                     "echo|/data/a.tar.gz|0.1",
		"echo x{}y":                   "echo|x/data/a.tar.gz 0.1y",
		"{1} {2} {lr} {#}":            "/data/a.tar.gz|0.1|0.1|7",
		"{1.} {1/} {1//} {1/.}":       "/data/a.tar|a.tar.gz|/data|a.tar",
		`awk {print} {"a":1} {a,b}`:   "",
		`x {"a":1} {a,b} { } {1}{lr}`: `x|{"a":1}|{a,b}|{|}|/data/a.tar.gz0.1`,
		"{3}":                         "",
		"{0}":                         "",
		"{seed}":                      "",
		"${lr} ${1} $x{lr}":           "${lr}|${1}|$x0.1",
	} {
		got, err := NewFiller().Fill(strings.Fields(words), row, 7)
		if strings.Join(got, "|") != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", words, got, err, want)
		}
	}
	// Without values, braces are the command's.
	if got, err := NewFiller().Fill([]string{"find", "-exec", "rm", "{}", ";", "{#}"}, Row{}, 7); err != nil || strings.Join(got, " ") != "find -exec rm {} ; 7" {
		t.Errorf("%q, %v", got, err)
	}
	// Without names, words in braces are the command's.
	if got, err := NewFiller().Fill([]string{"awk", "{print}"}, Row{Values: []string{"file"}}, 1); err != nil || strings.Join(got, " ") != "awk {print} file" {
		t.Errorf("%q, %v", got, err)
	}
	if got, _ := NewFiller().Fill([]string{"{/.}", "{.}"}, Row{Values: []string{"/home/.bashrc"}}, 1); strings.Join(got, " ") != ".bashrc /home/.bashrc" {
		t.Errorf("a name that begins with a dot: %q", got)
	}
}

func TestParseObjects(t *testing.T) {
	want := []Row{{[]string{"lr", "name", "list"}, []string{"0.10", "a b", `[1,"x"]`}}, {[]string{"lr"}, []string{"true"}}}
	for _, text := range []string{`[{"lr": 0.10, "name": "a b", "list": [1, "x"]}, {"lr": true}]`, "{\"lr\": 0.10, \"name\": \"a b\", \"list\": [1,\n \"x\"]}\n{\"lr\": true}"} {
		got, err := ParseObjects(strings.NewReader(text))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	for text, want := range map[string]string{
		`[{"a": 1}, 2]`: "entry 2 is no object", `[{"a": 1}`: "EOF", `{"a" 1}`: "object 1", `"x"`: "entry 1 is no object", `[{"a":1}}`: "invalid",
	} {
		if _, err := ParseObjects(strings.NewReader(text)); text != `[{"a": 1}` && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}

func FuzzFill(f *testing.F) {
	f.Add("{} {1.} {a//}", "value", 3)
	f.Fuzz(func(t *testing.T, word, value string, number int) {
		row := Row{Names: []string{"a"}, Values: []string{value}}
		if got, err := NewFiller().Fill([]string{word}, row, number); err == nil && !strings.ContainsAny(word, "{}") && (got[0] != word || got[1] != value) {
			t.Errorf("%q", got)
		}
	})
}
