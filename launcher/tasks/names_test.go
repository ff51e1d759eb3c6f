package tasks

import (
	"strings"
	"testing"
)

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "7": true, "Job-1.b_c": true, strings.Repeat("x", 63): true,
		"": false, strings.Repeat("x", 64): false, "-a": false, ".a": false, "_a": false,
		"a/b": false, "a\n": false, "a b": false, "é": false, "aé": false, "a\x00": false, "a\xff": false,
	} {
		if got := ValidName(name); got != want {
			t.Errorf("name %q: %v, want %v", name, got, want)
		}
	}
}
