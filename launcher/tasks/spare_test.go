package tasks

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a full disk lives are written again and again, and an end at last.
func TestSpareFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	s := Store{Data: t.TempDir(), State: t.TempDir()}
	if err := unix.Mount("tmpfs", s.Data, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.Data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	const id = "0123456789ab"
	if err := os.MkdirAll(s.Dir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is there already
		if err := s.ReserveSpace(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.WriteLife(id, Life{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(id, "filling"), make([]byte, 2<<20), 0o600); !isDiskFull(err) {
		t.Fatal(err)
	}
	for n := range 5 {
		if err := s.WriteLife(id, Life{Restarts: n}); err != nil {
			t.Fatal(err)
		}
		if l, err := s.Life(id); err != nil || l.Restarts != n {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if err := s.WriteExit(id, Exit{Code: 3}); err != nil {
		t.Fatal(err)
	}
	if e, err := s.Exit(id); err != nil || e.Code != 3 {
		t.Errorf("%+v, %v", e, err)
	}
	if err := s.WriteExit("ba9876543210", Exit{Error: strings.Repeat("x", 5000)}); err == nil {
		t.Error("a task without a directory has an end")
	}
}
