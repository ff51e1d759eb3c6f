package spell

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"train", "serve", "evaluate"}
	for _, tt := range []struct{ name, typed, want string }{
		{"missing letter", "trin", "train"},
		{"swapped letters", "tarin", "train"},
		{"wrong letters", "strve", "serve"},
		{"far from all", "notebook", ""},
		{"nothing typed", "", ""},
		{"as long as the difference", "ab", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Nearest(tt.typed, known); got != tt.want {
				t.Errorf("%q is taken for %q, want %q", tt.typed, got, tt.want)
			}
		})
	}
}

func TestNearestOfVerbs(t *testing.T) {
	verbs := []string{"run", "alloc", "gpus", "leases", "release", "discover", "repair"}
	for typed, want := range map[string]string{
		"rn": "run", "runn": "run", "urn": "run", "gpu": "gpus", "lease": "leases", "realease": "release", "discvoer": "discover",
		"frobnicate": "", "version": "", "x": "", "ls": "",
	} {
		if got := Nearest(typed, verbs); got != want {
			t.Errorf("%q is taken for %q, want %q", typed, got, want)
		}
	}
}
