package main

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/cmd/berth/othertools"
)

// TestSuggestedCommandsExist: berth explains no verb that it has, and the commands that it suggests
// exist.
func TestSuggestedCommandsExist(t *testing.T) {
	app := newApp()
	for name := range othertools.Verbs() {
		if app.Command(name) != nil {
			t.Errorf("berth %s exists, and is said not to", name)
		}
	}
	for _, c := range []struct{ typed, want string }{
		{"restart", ": " + othertools.Verbs()["restart"]},
		{"squeue", ": " + othertools.Verbs()["squeue"]},
		{"pss", " (did you mean ps?)"},
		{"inspct", " (did you mean inspect?)"},
		{"stpo", " (did you mean stop?)"},
		{"frobnicate", ""},
	} {
		if got := othertools.SuggestVerb(app, c.typed, ""); got != c.want {
			t.Errorf("%s: %q, want %q", c.typed, got, c.want)
		}
	}
}

// TestSuggestVerbOfGroup: for docker's verbs of two words, such as "image ls", berth suggests its own
// verb.
func TestSuggestVerbOfGroup(t *testing.T) {
	app := newApp()
	for typed, want := range map[string]string{
		"system": ": berth system df", "system info": ": berth info", "system events": ": " + othertools.Verbs()["events"],
		"image": ": berth images", "image prune": ": berth prune", "image pull": ": berth pull", "image rm": ": berth rmi", "image history": ": " + othertools.Verbs()["history"],
		"container": ": berth ps -a", "container ls": ": berth ps", "container stop": ": berth stop", "container prune": ": berth rm $(berth ps -aq --filter status=exited)",
		"image inspect": ": berth images --json", "instance list": ": berth ps", "cache clean": ": berth prune", "container nosuch": ": berth ps -a",
	} {
		name, next, _ := strings.Cut(typed, " ")
		if got := othertools.SuggestVerb(app, name, next); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
	for name, verbs := range othertools.Groups() {
		for next, verb := range verbs {
			if word, _, _ := strings.Cut(verb, " "); app.Command(word) == nil {
				t.Errorf("%s %s: there is no berth %s", name, next, verb)
			}
		}
	}
}
