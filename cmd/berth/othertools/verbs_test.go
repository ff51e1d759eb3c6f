package othertools

import (
	"testing"

	"github.com/urfave/cli/v2"
)

// TestSuggestedVerbsAreShown: suggested verbs are among those that the help shows.
func TestSuggestedVerbsAreShown(t *testing.T) {
	app := &cli.App{Commands: []*cli.Command{{Name: "ps"}, {Name: "enter", Hidden: true}}}
	for typed, want := range map[string]string{"pss": " (did you mean ps?)", "entre": ""} {
		if got := SuggestVerb(app, typed, ""); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
}
