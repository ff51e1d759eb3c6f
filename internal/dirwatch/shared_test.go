package dirwatch

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestShared: each subscriber is told of a change, also those of a watch that was closed in between.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	s := NewShared(dir, unix.IN_CREATE)
	for range 2 {
		first, cancelFirst := s.Subscribe()
		second, cancelSecond := s.Subscribe()
		f, err := os.CreateTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // it is empty
		<-first
		<-second
		cancelFirst()
		if err := os.Mkdir(filepath.Join(dir, filepath.Base(f.Name())+"-dir"), 0o700); err != nil {
			t.Fatal(err)
		}
		<-second
		cancelSecond()
	}
}
