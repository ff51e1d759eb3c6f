package images

import (
	"strings"
	"testing"
	"time"
)

// TestDangling: the error of docker's dangling=true names berth prune.
func TestDangling(t *testing.T) {
	if _, err := imageFilters([]string{"dangling=true"}); err == nil || !strings.Contains(err.Error(), "berth prune removes layers that nothing needs") {
		t.Errorf("dangling: %v", err)
	}
}

// TestFilterTypos: the error of a misspelt filter names the nearest filter.
func TestFilterTypos(t *testing.T) {
	_, until := pruneSelection([]string{"untill=1h"}, time.Now())
	_, reference := imageFilters([]string{"refernce=x"})
	for name, err := range map[string]error{"until": until, "reference": reference} {
		if err == nil || !strings.Contains(err.Error(), "(did you mean ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
