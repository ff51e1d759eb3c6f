package docs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommands(t *testing.T) {
	page := "# Title\n\n```console\n$ a --b  # remark\n$ c d   # fails: exit code 75\none\n\ntwo\n$ e &\n```\ntext\n```json\n{}\n```\n"
	blocks, err := fenced("p.md", page)
	if err != nil || len(blocks) != 2 || blocks[1].kind != "json" || blocks[1].String() != "p.md:12" {
		t.Fatalf("%+v, %v", blocks, err)
	}
	got, err := blocks[0].commands()
	want := []command{{line: "a --b"}, {line: "c d", code: 75, prints: []string{"one", "", "two"}}, {line: "e", background: true}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(command{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := fenced("p.md", "```\nx\n"); err == nil {
		t.Error("a block that is never closed is none")
	}
	if _, err := (block{text: []string{"x", "$ y"}}).commands(); err == nil {
		t.Error("output of no command")
	}
}

func TestFits(t *testing.T) {
	for _, c := range []struct {
		name    string
		shown   []string
		printed string
		want    bool
	}{
		{"the same", []string{"a  b"}, "a b\n", true},
		{"another word", []string{"a b"}, "a c\n", false},
		{"a line more", []string{"a"}, "a\nb\n", false},
		{"a line less", []string{"a", "b"}, "a\n", false},
		{"nothing", []string{"a"}, "", false},
		{"lines left out", []string{"a", "…", "z"}, "a\nb\nc\nz\n", true},
		{"lines left out, and another end", []string{"a", "…", "z"}, "a\nb\nc\n", false},
		{"words left out", []string{"a … z"}, "a b c z\n", true},
		{"a dot is a dot", []string{"a.b"}, "axb\n", false},
		{
			"ids and times",
			[]string{"0123456789ab GPU-086e4f5c-f41a-44d9-8eb7-c881ab3ca2ae 3s 2026-01-02 03:04"},
			"fedcba987654  GPU-486e4f5c-f41a-44d9-8eb7-c881ab3ca2ae  1m05s  2027-11-12 13:14\n", true,
		},
		{"another kind of id", []string{"MIG-086e4f5c-f41a-44d9-8eb7-c881ab3ca2ae"}, "GPU-086e4f5c-f41a-44d9-8eb7-c881ab3ca2ae\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fits(c.shown, c.printed); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
