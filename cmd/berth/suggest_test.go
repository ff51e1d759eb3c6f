package main

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
)

// TestInstead: no verb that berth has is explained away, and what is named in place of
// one exists.
func TestInstead(t *testing.T) {
	app := newApp()
	for _, name := range slices.Concat(slices.Collect(maps.Keys(replacedVerbs())), slices.Collect(maps.Keys(otherToolsVerbs()))) {
		if app.Command(name) != nil {
			t.Errorf("berth %s exists, and is said not to", name)
		}
	}
	for _, c := range []struct{ typed, want string }{
		{"restart", ": " + replacedVerbs()["restart"]},
		{"squeue", ": " + otherToolsVerbs()["squeue"]},
		{"pss", " (did you mean ps?)"},
		{"inspct", " (did you mean inspect?)"},
		{"stpo", " (did you mean stop?)"},
		{"frobnicate", ""},
	} {
		if got := suggestVerb(app, c.typed, ""); got != c.want {
			t.Errorf("%s: %q, want %q", c.typed, got, c.want)
		}
	}
	if !slices.Contains(listVerbs(app), "ps") || slices.Contains(listVerbs(app), "enter") {
		t.Error("verbs are those that the help shows")
	}
}

// TestTwoWords: docker's verbs of two words are answered with the one that serves.
func TestTwoWords(t *testing.T) {
	app := newApp()
	for typed, want := range map[string]string{
		"system": ": berth system df", "system info": ": berth info", "system events": ": " + replacedVerbs()["events"],
		"image": ": berth images", "image prune": ": berth prune", "image pull": ": berth pull", "image rm": ": berth rmi", "image history": ": " + replacedVerbs()["history"],
		"container": ": berth ps -a", "container ls": ": berth ps -a", "container stop": ": berth stop", "container prune": ": berth rm", "container nosuch": ": berth ps -a",
	} {
		name, next, _ := strings.Cut(typed, " ")
		if got := suggestVerb(app, name, next); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
	for name, verbs := range twoWords() {
		for next, verb := range verbs {
			if word, _, _ := strings.Cut(verb, " "); app.Command(word) == nil {
				t.Errorf("%s %s: there is no berth %s", name, next, verb)
			}
		}
	}
}

// TestTypos: what is typed wrongly behind a flag is answered with the nearest right word.
func TestTypos(t *testing.T) {
	for _, tt := range []struct{ flag, typed, meant string }{
		{"--restart", "on-faliure:3", "on-failure"},
		{"--restart", "alway", "always"},
		{"--stop-signal", "TREM", "TERM"},
		{"--stop-signal", "sigusr9", "USR1"},
		{"--security-opt", "secomp=unconfined", "seccomp"},
		{"--security-opt", "no-new-privilges", "no-new-privileges"},
		{"--pull", "allways", "always"},
		{"--mount", "typ=bind,src=/tmp,dst=/x", "type"},
		{"--mount", "type=bnd,src=/tmp,dst=/x", "bind"},
		{"--ulimit", "nofiles=1", "nofile"},
		{"--log-opt", "max-sizes=1m", "max-size"},
	} {
		t.Run(tt.flag+" "+tt.typed, func(t *testing.T) {
			app := &cli.App{
				Writer: io.Discard, ErrWriter: io.Discard, DisableSliceFlagSeparator: true,
				Flags: slices.Concat(runFlags(), lifecycleFlags(), pullFlags()), ExitErrHandler: func(*cli.Context, error) {},
				Action: func(c *cli.Context) error { return errorOf(launchOptions(c, berth.Config{})) },
			}
			err := app.RunContext(t.Context(), []string{"berth", tt.flag, tt.typed, "IMAGE"})
			if want := "(did you mean " + tt.meant + "?)"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, without %s", err, want)
			}
		})
	}
	for name, err := range map[string]error{
		"status": errorOf(parseFilters([]string{"status=runing"})), "name": errorOf(parseFilters([]string{"nmae=x"})),
		"until": errorOf(pruneSelection([]string{"untill=1h"}, time.Now())), "reference": errorOf(imageFilters([]string{"refernce=x"})),
	} {
		if err == nil || !strings.Contains(err.Error(), "(did you mean ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }
