package runtimestate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runc writes the whole configuration into its record: it is larger than the spec.
func TestLargeRecord(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "c1"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"init_process_pid":42,"config":{"env":["` + strings.Repeat(`\u003c`, 16<<20) + `"],"labels":["bundle=/b"]}}`
	if err := os.WriteFile(filepath.Join(root, "c1/state.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := Read(root, "c1"); len(all) != 1 || all[0].PID != 42 || all[0].Bundle != "/b" {
		t.Errorf("%+v", all)
	}
}
