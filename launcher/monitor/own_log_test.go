package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOwnLogIsBounded: the log of a monitor that fails for years has at most a MiB and one error.
func TestOwnLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "monitor.log")
	log, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	failed := errors.New(strings.Repeat("x", 100<<10))
	for range 25 {
		logOwn(log, failed)
		if fi, err := log.Stat(); err != nil || fi.Size() > maxOwnLog+101<<10 {
			t.Fatalf("%d bytes, %v", fi.Size(), err)
		}
	}
	logOwn(log, errors.New("the last"))
	if data, err := os.ReadFile(path); err != nil || !strings.HasSuffix(string(data), " the last\n") {
		t.Errorf("%.100q, %v", data, err)
	}
}
