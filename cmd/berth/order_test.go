package main

import (
	"slices"
	"strings"
	"testing"
)

func TestOrdered(t *testing.T) {
	for _, c := range []struct{ name, typed, want string }{
		{"behind the task", "berth rm train -f", "berth rm -f train"},
		{"between tasks", "berth stop a -t 3 b", "berth stop -t 3 a b"},
		{"joined by =", "berth stop a --time=3 b", "berth stop --time=3 a b"},
		{"several short ones", "berth ps -an 5", "berth ps -an 5"},
		{"after the end of flags", "berth rm a -- -f", "berth rm -- a -f"},
		{"a flag of all", "berth --config /x rm a -f", "berth --config /x rm -f a"},
		{"a value that looks like a verb", "berth --config rm rm a -f", "berth --config rm rm -f a"},
		{"a command's flags", "berth exec a ls -l", "berth exec a ls -l"},
		{"an image's command", "berth run image ls -l", "berth run image ls -l"},
		{"a verb with verbs", "berth cdi validate x --json", "berth cdi validate x --json"},
		{"a verb that berth calls itself", "berth enter /x 1 sh -c x", "berth enter /x 1 sh -c x"},
		{"no such verb", "berth nosuch a -f", "berth nosuch a -f"},
		{"an unknown flag", "berth rm a --frce b", "berth rm --frce a b"},
		{"a value that is missing", "berth kill a -s", "berth kill -s a"},
		{"nothing", "berth", "berth"},
		{"what a shell asks", "berth rm a --generate-bash-completion", "berth rm a --generate-bash-completion"},
		{"no verb", "berth --version", "berth --version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			typed := strings.Fields(c.typed)
			got := ordered(newApp(), slices.Clone(typed))
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q became %q, want %q", c.typed, got, c.want)
			}
		})
	}
}
