package diff

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestUnified: what is printed is what diff -u prints, but for its choice between
// steps that are as few.
func TestUnified(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{"the same", "a\n", "a\n", ""},
		{"a new file", "", "a\nb\n", "--- old\n+++ new\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{"a file that goes", "a\n", "", "--- old\n+++ new\n@@ -1 +0,0 @@\n-a\n"},
		{"a line of one", "a\n", "b\n", "--- old\n+++ new\n@@ -1 +1 @@\n-a\n+b\n"},
		{"no line end before", "a", "a\n", "--- old\n+++ new\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		{"no line end after", "a\n", "a\nb", "--- old\n+++ new\n@@ -1 +1,2 @@\n a\n+b\n\\ No newline at end of file\n"},
		{
			"two places", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "x\n2\n3\n4\n5\n6\n7\n8\ny\n",
			"--- old\n+++ new\n@@ -1,4 +1,4 @@\n-1\n+x\n 2\n 3\n 4\n@@ -6,4 +6,4 @@\n 6\n 7\n 8\n-9\n+y\n",
		},
		{
			"two near places", "1\n2\n3\n4\n5\n6\n7\n8\n", "x\n2\n3\n4\n5\n6\n7\ny\n",
			"--- old\n+++ new\n@@ -1,8 +1,8 @@\n-1\n+x\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n+y\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Unified("old", "new", c.before, c.after); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestPatch: what is taken away is the old text's, and what is added the new one's.
func TestPatch(t *testing.T) {
	text := rapid.Custom(func(t *rapid.T) string {
		all := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "", "d"}), 0, 30).Draw(t, "lines"), "\n")
		return all + rapid.SampledFrom([]string{"", "\n"}).Draw(t, "end")
	})
	rapid.Check(t, func(t *rapid.T) {
		before, after := text.Draw(t, "before"), text.Draw(t, "after")
		if got := patch(t, before, Unified("old", "new", before, after)); got != after {
			t.Fatalf("it makes %q of %q, not %q", got, before, after)
		}
	})
}

// patch does what a unified diff says.
func patch(t *rapid.T, before, diff string) string {
	old, at, after := lines(before), 0, ""
	said := strings.SplitAfter(diff, "\n")
	for i, line := range said {
		if line == "" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "+++ ") || line == unended {
			continue
		}
		text := line[1:]
		if i+1 < len(said) && said[i+1] == unended {
			text = strings.TrimSuffix(text, "\n")
		}
		switch line[0] {
		case '@':
			var from, count int
			if n, _ := fmt.Sscanf(line, "@@ -%d,%d", &from, &count); n == 2 && count == 0 {
				from++
			}
			for ; at < from-1; at++ {
				after += old[at]
			}
		case '+':
			after += text
		default:
			if at >= len(old) || old[at] != text {
				t.Fatalf("%q isn't line %d of %q", text, at, before)
			}
			if at++; line[0] == ' ' {
				after += text
			}
		}
	}
	return after + strings.Join(old[at:], "")
}
