package tasks

import (
	"errors"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	all := []Task{
		{Record: Record{ID: "aaaaaaaaaaaa", Name: "train"}},
		{Record: Record{ID: "aabbbbbbbbbb", Name: "aaaaaaaaaaaa"}},
		{Record: Record{ID: "cccccccccccc", Name: "cccccccccccc"}},
	}
	for _, c := range []struct {
		name, word, id string
		kind           error
		text           string
	}{
		{"by name", "train", "aaaaaaaaaaaa", nil, ""},
		{"an id before a name", "aaaaaaaaaaaa", "aaaaaaaaaaaa", nil, ""},
		{"by the beginning of an id", "c", "cccccccccccc", nil, ""},
		{"one of several", "aa", "", ErrAmbiguous, "aaaaaaaaaaaa, aabbbbbbbbbb"},
		{"a slip", "trian", "", ErrNotFound, "did you mean train?"},
		{"nothing", "", "", ErrNotFound, `task ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(all, c.word)
			if got.ID != c.id || !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %q, %v", got.ID, err)
			}
		})
	}
}
