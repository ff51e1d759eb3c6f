package main

import (
	"slices"
	"testing"
)

// TestInstead: no verb that berth has is explained away, and what is named in place of
// one exists.
func TestInstead(t *testing.T) {
	app := newApp()
	for name := range instead() {
		if app.Command(name) != nil {
			t.Errorf("berth %s exists, and is said not to", name)
		}
	}
	for _, c := range []struct{ typed, want string }{
		{"restart", ": " + instead()["restart"]},
		{"pss", " (did you mean ps?)"},
		{"inspct", " (did you mean inspect?)"},
		{"stpo", " (did you mean stop?)"},
		{"frobnicate", ""},
	} {
		if got := meant(app, c.typed); got != c.want {
			t.Errorf("%s: %q, want %q", c.typed, got, c.want)
		}
	}
	if !slices.Contains(verbs(app), "ps") || slices.Contains(verbs(app), "enter") {
		t.Error("verbs are those that the help shows")
	}
}
