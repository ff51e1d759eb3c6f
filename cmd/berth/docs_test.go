package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth"
)

var update = flag.Bool("update", false, "write golden files and generated documentation")

// golden compares with a file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what the code says; go test ./cmd/berth -update writes it. The code says:\n%s", path, got)
	}
}

// docs renders the generated files by name. They don't depend on the build.
func docs() (map[string]string, error) {
	app := newApp()
	app.Version, app.Description = "", about
	man, err := app.ToManWithSection(1)
	if err != nil {
		return nil, fmt.Errorf("render the man page: %w", err)
	}
	fish, err := app.ToFishCompletion()
	if err != nil {
		return nil, fmt.Errorf("render the fish completion: %w", err)
	}
	// The library shows placeholders' marks, and takes --wait to need a value.
	fish = strings.NewReplacer("`", "", " -l wait -r ", " -l wait ").Replace(fish)
	keys, err := configPage("../../packaging/config.toml")
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"man/berth.1": man + manSections(), "man/berth-config.5": keys,
		"completions/berth.fish": fish + fishWords(app), "completions/berth.bash": bash(app), "completions/_berth": zsh(app),
	}, nil
}

// manSections is what a man page has and the library's lacks, in the same tables as
// help and configuration.
func manSections() string {
	var b strings.Builder
	heading, words, _ := strings.Cut(requestHelp, "\n")
	fmt.Fprintf(&b, "\n\n.SH REQUESTS\n%s\n.EX\n%s\n.EE\n", heading, words)
	b.WriteString("\n.SH EXIT STATUS\n")
	for _, e := range exitCodes() {
		fmt.Fprintf(&b, ".TP\n%d\n%s\n", e.code, e.text)
	}
	fmt.Fprintf(&b, ".PP\n%s\n\n.SH FILES\n", ownCodes)
	for _, f := range files() {
		fmt.Fprintf(&b, ".TP\n%s\n%s\n", f.path, f.holds)
	}
	b.WriteString(".SH SEE ALSO\n.BR berth-config (5),\n.BR berth-runtime (8),\n.BR berth-hook (8)\n")
	return roff(b.String())
}

// roff writes characters that are its own; no line of ours begins with a request of it.
func roff(text string) string {
	return strings.NewReplacer("\u2026", `\[u2026]`, "'", `\(aq`).Replace(text)
}

// configPage is berth-config(5): the packaged configuration, whose comments explain
// each key.
func configPage(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var b, said strings.Builder
	b.WriteString(".TH berth-config 5\n\n.SH NAME\nberth-config \\- the configuration of berth, its hook and its runtime\n\n.SH DESCRIPTION\n" +
		"The file is TOML. Every key may be left out; here they are with their defaults. A key that berth doesn't know is an error.\n")
	_, body, _ := strings.Cut(string(text), "\n\n") // after what the file says of itself
	row := false                                    // of what is a line of its own
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		switch comment, ok := strings.CutPrefix(line, "# "); {
		case ok:
			if was := row; !strings.HasPrefix(comment, " ") && was {
				said.WriteString(".br\n")
			}
			row = strings.HasPrefix(comment, " ")
			fmt.Fprintln(&said, strings.ReplaceAll(comment, `\`, `\e`))
		case strings.HasPrefix(line, "["):
			fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(strings.Trim(line, "[]")))
		case line != "":
			fmt.Fprintf(&b, ".TP\n.B %s\n%s", strings.ReplaceAll(line, `"`, `\(dq`), said.String())
			said.Reset()
		}
	}
	b.WriteString(".SH SEE ALSO\n.BR berth (1),\n.BR berth-runtime (8)\n")
	return roff(b.String()), nil
}

type file struct{ path, holds string }

// files are where berth keeps what, unless the configuration says another place.
func files() []file {
	c := berth.Config{State: "/run/berth", Data: "/var/lib/berth"}
	return []file{
		{berth.ConfigPath, "the configuration; another is read with --config or BERTH_CONFIG"},
		{c.SnapshotPath(), "the inventory that berth discover took"},
		{c.State + "/ledger.json", "who holds what, and who waits; a reboot empties it"},
		{c.State + "/leases/", "a receipt for each lease, from which berth repair rebuilds the ledger"},
		{c.Data + "/events.log", "what was leased, by whom, and when it ended"},
		{c.Data + "/driver/", "the driver's files, one directory for each version"},
		{c.Data + "/images/", "unpacked layers, shared by all tasks"},
	}
}

// TestManPage: the parts that nothing else makes sure of.
func TestManPage(t *testing.T) {
	pages, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	man := pages["man/berth.1"]
	for _, want := range []string{
		".SH REQUESTS\n", "1g.10gb:2", "2,mem>=40G", ".SH EXIT STATUS\n.TP\n0\nsuccess\n", ".TP\n75\n", ".SH FILES\n.TP\n/etc/berth/config.toml\n",
	} {
		if n := strings.Count(man, want); n != 1 {
			t.Errorf("%q is there %d times", want, n)
		}
	}
	defaults, err := berth.LoadConfig(berth.ConfigPath)
	if err == nil && (defaults.State != "/run/berth" || defaults.Data != "/var/lib/berth") && !exists(berth.ConfigPath) {
		t.Errorf("the page names other directories than the defaults %s and %s", defaults.State, defaults.Data)
	}
}

// TestGenerated: what packaging ships is what the code says.
func TestGenerated(t *testing.T) {
	pages, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		golden(t, filepath.Join("../../packaging", name), text)
	}
}

// TestHelpFits: nobody has to scroll sideways.
func TestHelpFits(t *testing.T) {
	app := newApp()
	texts := map[string]string{"berth": app.Description}
	for _, c := range app.VisibleCommands() {
		texts[c.Name] = c.Description + "\n" + c.Usage
	}
	for name, text := range texts {
		for line := range strings.Lines(text) {
			if n := len([]rune(line)); n > 120 {
				t.Errorf("%s: a line of its help has %d characters: %s", name, n, line)
			}
		}
	}
}
