package apptainer

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestQuote: a shell reads quoted text as it is, and text to expand with its variables alone replaced.
func TestQuote(t *testing.T) {
	for _, text := range []string{"", "a b", "'", `"`, `\`, `a\`, "$HOME", "`id`", "$(id)", "a\nb", `'\''`, "*", "~", "\x01\xff", strings.Repeat("x", 100_000)} {
		if got := runShell(t, "printf %s "+quoteWord(text)); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
		if !strings.ContainsAny(text, "$`") {
			if got := runShell(t, "printf %s "+quoteExpanded(text)); got != text {
				t.Errorf("%q to expand becomes %q", text, got)
			}
		}
	}
	if got := runShell(t, "A='x y'; printf %s "+quoteExpanded(`$A "\"; echo no; : "`)); got != `x y "\"; echo no; : "` {
		t.Errorf("expanded: %q", got)
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("'\\\"$`\n")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsRune(text, 0) {
			return // no shell script has NUL
		}
		if got := runShell(t, "printf %s "+quoteWord(text)); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}

// runShell runs a script, which is standard input: it may be longer than an argument.
func runShell(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", script, err)
	}
	return string(out)
}

func TestParseBind(t *testing.T) {
	for _, tt := range []struct{ word, source, target, options string }{
		{"/etc", "/etc", "/etc", "nosuid nodev"},
		{"/etc:/a", "/etc", "/a", "nosuid nodev"},
		{"/etc:/a/../b:ro", "/etc", "/b", "nosuid nodev ro"},
		{"/etc::ro", "/etc", "/etc", "nosuid nodev ro"},
	} {
		m, err := parseBind(tt.word)
		if err != nil || m.Source != tt.source || m.Destination != tt.target || strings.Join(m.Options, " ") != "rbind rslave "+tt.options {
			t.Errorf("%s: %+v, %v", tt.word, m, err)
		}
	}
	for word, want := range map[string]string{
		"":                  "--bind  is not SRC[:DST[:OPTIONS]]",
		"/etc:/a:ro:x":      "--bind /etc:/a:ro:x is not SRC[:DST[:OPTIONS]]",
		"/etc:a":            "--bind /etc:a: a is not an absolute path in the container",
		"/etc:/":            "--bind /etc:/: nothing can be mounted over the container's root",
		"/dev":              "--bind /dev: a container has a /dev of its own; files of the host's can be bound in it, such as /dev/fuse",
		"/etc:/dev/../dev/": "--bind /etc:/dev/../dev/: a container has a /dev of its own; files of the host's can be bound in it, such as /dev/fuse",
		"/etc:/a:rx":        `--bind /etc:/a:rx: option "rx" is not known: there are ro and rw`,
		"/no/such:/data":    "--bind /no/such:/data: stat /no/such: no such file or directory",
	} {
		if _, err := parseBind(word); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", word, err, want)
		}
	}
}

func TestJoinWords(t *testing.T) {
	if got, want := joinOptions([]string{"/a:/b:ro", "rw", "/c", "ro"}), []string{"/a:/b:ro,rw", "/c", "ro"}; !slices.Equal(got, want) {
		t.Errorf("options: %q, want %q", got, want)
	}
	if got, want := joinValues([]string{"A=1,B=2", "C=x,y,D=z"}), []string{"A=1", "B=2", "C=x,y", "D=z"}; !slices.Equal(got, want) {
		t.Errorf("values: %q, want %q", got, want)
	}
}
