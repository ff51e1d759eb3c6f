package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/testutil"
)

// A damaged record of a name, as a power failure leaves it, counts as none: the others are listed,
// the image is pulled anew, and the record is removed.
func TestDamagedNames(t *testing.T) {
	for name, data := range map[string]string{
		"empty": "", "zeros": strings.Repeat("\x00", 300), "cut off": `{"version":1,"name":"x`, "without a manifest": `{"version":1,"name":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := fillStore(t)
			file := s.recordPath(s.one, thisPlatform(t).String())
			testutil.Must(t, os.WriteFile(file, []byte(data), 0o600))
			if diff := cmp.Diff([]string{s.two}, s.images(t)); diff != "" {
				t.Error(diff)
			}
			if got, err := s.Damaged(); err != nil || len(got) != 1 || got[0] != file {
				t.Errorf("%q, %v", got, err)
			}
			if _, err := s.readName(s.one, thisPlatform(t).String()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("asked for it: %v", err)
			}
			_, err := s.Prune(Selection{Tasks: s.tasks})
			testutil.Must(t, err)
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is still there: %v", err)
			}
			_, err = pullAndUnpack(t, s.Store, s.one, Search{})
			testutil.Must(t, err)
			if got := s.images(t); len(got) != 2 {
				t.Errorf("pulled again: %q", got)
			}
		})
	}
	t.Run("a later berth's", func(t *testing.T) {
		s := fillStore(t)
		file := filepath.Join(s.namesDir(), "00.json")
		testutil.Must(t, os.WriteFile(file, []byte(`{"version":2,"manifest":7}`), 0o600))
		if _, err := s.Prune(Selection{Tasks: s.tasks}); err == nil {
			t.Error("pruned beside a name that nobody here knows")
		}
		testutil.Must(t, os.Remove(file))
	})
}
