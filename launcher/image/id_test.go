package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// What was pulled can be run by its id, and a name that is one's goes before.
func TestOpenByID(t *testing.T) {
	s := fillStore(t)
	list, err := s.List()
	testutil.Must(t, err)
	ids := map[string]string{}
	for _, i := range list {
		ids[i.Name] = i.ID
	}
	s.registry.Seen()
	bare := strings.TrimPrefix(ids[s.two], "sha256:")
	for _, word := range []string{bare[:12], bare[:4], bare, ids[s.two]} {
		for _, pull := range []Pull{Never, Missing} {
			img, err := s.Open(t.Context(), word, Search{Pull: pull})
			if err != nil || img.Name != s.two {
				t.Errorf("%s: %+v, %v, want %s", word, img, err, s.two)
				continue
			}
			img.Close()
		}
	}
	if seen := s.registry.Seen(); len(seen) > 0 {
		t.Errorf("the registry was asked for %q", seen)
	}
	for _, word := range []string{bare[:3], bare[:11] + "x", strings.Repeat("0", 12)} {
		if _, err := s.Open(t.Context(), word, Search{Pull: Never}); !errors.Is(err, ErrNotHere) {
			t.Errorf("%s: %v, want that it isn't here", word, err)
		}
	}
}
