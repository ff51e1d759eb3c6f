package layertree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The names of a layer's directories don't fill the memory.
func TestNamesAreBounded(t *testing.T) {
	dir := t.TempDir()
	tree, err := New(dir, 1<<40)
	testutil.Must(t, err)
	defer tree.Close()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 15)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for i := 0; i*len(deep) <= maxNames; i++ {
		testutil.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("%s%d", deep, i), Mode: 0o755}))
	}
	testutil.Must(t, w.Close())
	if err := tree.Apply(&layer); err == nil || !strings.Contains(err.Error(), "names of its directories") {
		t.Errorf("error %v", err)
	}
}
