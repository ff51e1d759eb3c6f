package monitor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-gpu/berth/launcher/attach"
)

// TestLateLooker: who attaches when a gang's life has ended hears so, and who waits for all to
// be given back doesn't yet.
func TestLateLooker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	s, err := serve(path)
	if err != nil {
		t.Fatal(err)
	}
	s.lifeEnded(3)
	first, err := attach.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	last, err := attach.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	if err := attach.Write(last, attach.Quiet, nil); err != nil {
		t.Fatal(err)
	}
	for !attached(s, 2, 1) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(2 * lookLate)
	s.lifeHasEnded(3)
	expectExit(t, first, 3)
	s.end(4)
	expectExit(t, last, 4)
}

// attached says whether so many are, of whom some wait for the end alone.
func attached(s *server, all, quiet int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		if c.quiet {
			quiet--
		}
	}
	return len(s.clients) == all && quiet == 0
}

func expectExit(t *testing.T, conn *os.File, code byte) {
	t.Helper()
	kind, data, err := attach.Read(conn, make([]byte, attach.Max))
	if err != nil || kind != attach.Exit || len(data) != 1 || data[0] != code {
		t.Errorf("%v %v %v, want the end with %d", kind, data, err, code)
	}
}
