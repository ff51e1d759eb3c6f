package othertools

import (
	"testing"

	"github.com/urfave/cli/v2"
)

// TestIsSlurmTime: a word is a time of Slurm's only if it can be neither an image nor the beginning of its id.
func TestIsSlurmTime(t *testing.T) {
	for word, want := range map[string]bool{
		"60": true, "120": true, "1:00:00": true, "1-00:00": true, "90:00": true, "": false, "1234": false, "ab": false, "debian:13": false,
	} {
		if IsSlurmTime(word) != want {
			t.Errorf("%q: %v", word, !want)
		}
	}
}

// TestSuggestedVerbsAreShown: suggested verbs are among those that the help shows.
func TestSuggestedVerbsAreShown(t *testing.T) {
	app := &cli.App{Commands: []*cli.Command{{Name: "ps"}, {Name: "enter", Hidden: true}}}
	for typed, want := range map[string]string{"pss": " (did you mean ps?)", "entre": ""} {
		if got := SuggestVerb(app, typed, ""); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
}
