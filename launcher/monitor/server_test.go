package monitor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/launcher/attach"
)

// A client that asks for a gang's exit code gets it, whether it asks before or after the end.
// A client that doesn't ask is answered when the gang's resources are released.
func TestGangEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	s, err := newServer(path)
	if err != nil {
		t.Fatal(err)
	}
	early, last := connectViewer(t, path), connectViewer(t, path)
	if err := attach.Write(early, attach.Ended, nil); err != nil {
		t.Fatal(err)
	}
	s.gangEnded(3)
	expectExit(t, early, 3)
	late := connectViewer(t, path)
	if err := attach.Write(late, attach.Ended, nil); err != nil {
		t.Fatal(err)
	}
	expectExit(t, late, 3)
	s.shutDown(4)
	expectExit(t, last, 4)
}

func connectViewer(t *testing.T, path string) *os.File {
	t.Helper()
	conn, err := attach.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func expectExit(t *testing.T, conn *os.File, code byte) {
	t.Helper()
	kind, data, err := attach.Read(conn, make([]byte, attach.Max))
	if err != nil || kind != attach.Exit || len(data) != 1 || data[0] != code {
		t.Errorf("%v %v %v, want the end with %d", kind, data, err, code)
	}
}
