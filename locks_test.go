package berth

import (
	"slices"
	"testing"

	"github.com/berth-gpu/berth/cdi/shared"
)

// TestLocks: Locks lists the paths at which other packages lock.
func TestLocks(t *testing.T) {
	all := Config{Data: "/d", State: "/s"}.Locks()
	driver := shared.InData("/d")
	for _, want := range []string{driver.Source + ".lock", driver.Source + "/.bound/lock", driver.Mount + ".lock", "/d/images/sha256"} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is missing in %q", want, all)
		}
	}
	if slices.Contains(all, "/s/ldcache/lock") {
		t.Error("/s/ldcache is listed, and no package locks it any more")
	}
}
