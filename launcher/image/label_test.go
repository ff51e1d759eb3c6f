package image

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLabelFits(t *testing.T) {
	labels := map[string]string{"a": "1", "empty": ""}
	for text, want := range map[string]bool{
		"a": true, "a=1": true, "a=2": false, "a=": false, "empty": true, "empty=": true, "b": false, "b=": false, "": false,
	} {
		l := ParseLabel(text)
		if got := l.Matches(labels); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if l.Not = true; l.Matches(labels) == want {
			t.Errorf("not %q: %v, too", text, want)
		}
	}
}

// A task's labels are its own and the image's; its own win, and no image fills records.
func TestTaskLabels(t *testing.T) {
	own := map[string]string{"own": "o", "both": "o"}
	was := maps.Clone(own)
	for _, tt := range []struct {
		name       string
		image, own map[string]string
		want       map[string]string
	}{
		{name: "none"},
		{name: "the task's", own: own, want: own},
		{name: "the image's", image: map[string]string{"of": "i"}, want: map[string]string{"of": "i"}},
		{name: "both", image: map[string]string{"of": "i", "both": "i"}, own: own, want: map[string]string{"of": "i", "own": "o", "both": "o"}},
		{name: "a book", image: map[string]string{"of": strings.Repeat("x", maxLabels)}, own: own, want: own},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Config{Labels: tt.image}.TaskLabels(tt.own)
			if diff := cmp.Diff(tt.want, got); diff != "" || !maps.Equal(own, was) {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
