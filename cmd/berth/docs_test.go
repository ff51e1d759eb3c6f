package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
)

// docs renders the generated files by name. They don't depend on the build.
func docs() (map[string]string, error) {
	app := newApp()
	app.Version, app.Description = "", about
	fish, err := app.ToFishCompletion()
	if err != nil {
		return nil, fmt.Errorf("render the fish completion: %w", err)
	}
	// The library shows placeholders' marks, takes --wait to need a value, and other names
	// of a flag for letters.
	fish = strings.NewReplacer("`", "", " -l wait -r ", " -l wait ").Replace(fish)
	fish = regexp.MustCompile(` -s (\w[\w-]+ )`).ReplaceAllString(fish, " -l $1")
	keys, err := configPage("../../packaging/config.toml")
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"man/berth.1": manPage(app), "man/berth-config.5": keys,
		"completions/berth.fish": fishVerbs(app, fishPaths(app, fish)) + fishWords(app) + fishFiles(app), "completions/berth.bash": bash(app), "completions/_berth": zsh(app),
	}, nil
}

type file struct{ path, holds string }

// files are where berth keeps what, unless the configuration says another place.
func files() []file {
	c := berth.Config{State: "/run/berth", Data: "/var/lib/berth"}
	return []file{
		{berth.ConfigPath, "the configuration; another is read with --config or BERTH_CONFIG"},
		{c.SnapshotPath(), "the inventory that berth discover took"},
		{c.State + "/ledger.json", "leases and waiting requests; a reboot empties it"},
		{c.State + "/leases/", "a receipt for each lease, from which berth repair rebuilds the ledger"},
		{c.State + "/broker.sock", "where berth-broker answers users without root"},
		{c.Data + "/events.log", "what was leased, by whom, and when it ended"},
		{c.Data + "/driver/", "the driver's files, one directory for each version"},
		{c.Data + "/images/", "unpacked layers, shared by all tasks"},
	}
}

// TestManPage: properties of the man page that TestGenerated doesn't check.
func TestManPage(t *testing.T) {
	pages, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	man := pages["man/berth.1"]
	for _, want := range []string{
		".SS berth release [FLAG…] LEASE|TASK|CONTAINER\n", ".SS berth cdi validate [FILE…]\n", ".SS berth setup docker [FLAG…]\n",
		".SS berth alloc [FLAG…] REQUEST [\\-\\-] COMMAND [ARG…]\n", "\\fB\\-\\-force, \\-f\\fR\nend the holder",
		".SH REQUESTS\n", "1g.10gb:2", "2,mem>=40G", ".SH EXIT STATUS\n.TP\n0\nsuccess\n", ".TP\n75\n", ".SH FILES\n.TP\n/etc/berth/config.toml\n",
	} {
		if n := strings.Count(man, escapeRoff(want)); n != 1 {
			t.Errorf("%q is there %d times", want, n)
		}
	}
	// Keys that share an explanation are together.
	const together = ".TP\n.B dev = \\(dq\\(dq\n.TQ\n.B proc = \\(dq\\(dq\n.TQ\n.B sys = \\(dq\\(dq\n.TQ\n.B cgroup = \\(dq\\(dq\nWhere"
	if keys := pages["man/berth-config.5"]; !strings.Contains(keys, together) {
		t.Errorf("%q isn't in %s", together, keys)
	}
	_, absent := os.Stat(berth.ConfigPath)
	defaults, err := berth.LoadConfig(berth.ConfigPath)
	if err == nil && (defaults.State != "/run/berth" || defaults.Data != "/var/lib/berth") && absent != nil {
		t.Errorf("the page names other directories than the defaults %s and %s", defaults.State, defaults.Data)
	}
}

// TestGenerated: the files in packaging equal the generated text.
func TestGenerated(t *testing.T) {
	pages, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		verbtest.CompareGolden(t, filepath.Join("../../packaging", name), text)
	}
}

// TestFlagHelpFits: the help of each flag fits the width of a terminal.
func TestFlagHelpFits(t *testing.T) {
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
