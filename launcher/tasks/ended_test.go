package tasks

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSplitEnded: tasks that have ended are told from the others by a file's existence; one whose
// removal failed, and one whose end a power failure took, are among the others.
func TestSplitEnded(t *testing.T) {
	s := Store{Data: t.TempDir()}
	const half, removed, blank = "dddddddddddd", "eeeeeeeeeeee", "ffffffffffff"
	for _, id := range []string{idA, idB, idC, half, removed, blank} {
		put(t, s, id, id, 0)
	}
	for i, id := range []string{idC, idA} {
		must(t, s.WriteExit(id, Exit{Code: 3}))
		must(t, os.Chtimes(s.Path(id, exitFile), time.Unix(int64(i), 0), time.Unix(int64(i), 0)))
		must(t, os.WriteFile(s.Path(id, recordFile), []byte("unread"), 0o600))
	}
	must(t, s.WriteExit(half, Exit{}))
	must(t, os.Remove(s.Path(half, recordFile))) // a removal was killed
	r, err := s.Record(removed)
	must(t, err)
	r.Remove = true
	must(t, s.WriteRecord(r))
	must(t, s.WriteExit(removed, Exit{}))
	must(t, os.WriteFile(s.Path(blank, exitFile), nil, 0o600))
	ended, others, err := s.SplitEnded()
	must(t, err)
	if diff := cmp.Diff([]string{idC, idA}, []string{ended[0].ID, ended[1].ID}); diff != "" || len(ended) != 2 {
		t.Errorf("ended: %v", ended)
	}
	if diff := cmp.Diff([]string{idB, half, removed, blank}, others); diff != "" {
		t.Errorf("others: %s", diff)
	}
	left, err := s.ListUnended()
	if err != nil || len(left) != 3 {
		t.Errorf("%v, %v", left, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
