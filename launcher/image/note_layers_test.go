package image

import (
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// TestNotedLayersDuringRemoval looks at tasks that others make and remove at the same time. A task's directory isn't made again.
func TestNotedLayersDuringRemoval(t *testing.T) {
	root := t.TempDir()
	var current atomic.Int64
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i := range int64(2000) {
			dir := filepath.Join(root, strconv.FormatInt(i, 10))
			current.Store(i)
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
		if _, err := readLayersFile(filepath.Join(root, strconv.FormatInt(current.Load(), 10))); err != nil {
			t.Fatal(err)
		}
		select {
		case <-over:
			return
		default:
		}
	}
}
