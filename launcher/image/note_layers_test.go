package image

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// TestNotedLayersDuringRemoval looks at a task that others make and remove at the same time.
func TestNotedLayersDuringRemoval(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "task")
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 2000 {
			for _, err := range []error{
				os.MkdirAll(filepath.Join(dir, "bundle"), 0o700),
				os.WriteFile(filepath.Join(dir, LayersFile), []byte("layer\n"), 0o600),
				os.WriteFile(filepath.Join(dir, "bundle/config.json"), nil, 0o600),
				tasks.RemoveDir(dir),
			} {
				if err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for {
		if _, err := readLayersFile(dir); err != nil {
			t.Fatal(err)
		}
		select {
		case <-over:
			return
		default:
		}
	}
}
