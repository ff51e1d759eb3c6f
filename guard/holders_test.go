package guard

import (
	"os"
	"path/filepath"
	"testing"
)

// For tasks that have ended, of which thousands may be kept, no process is searched for.
func TestEndedTasksHoldNothing(t *testing.T) {
	e := newEviction(t)
	tasks := t.TempDir()
	bundle := filepath.Join(tasks, "0123456789ab", "bundle")
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	spec := `{"annotations":{"` + LeaseAnnotation + `":"0123456789ab"},"linux":{"cgroupsPath":"../no/cgroup"}}`
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.ListHolders(tasks); err == nil {
		t.Fatal("a task that runs isn't looked at")
	}
	if err := os.WriteFile(filepath.Join(tasks, "0123456789ab", "exit.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.ListHolders(tasks); err != nil {
		t.Error(err)
	}
}
