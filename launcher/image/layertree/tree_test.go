package layertree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// The names of a layer's directories don't fill the memory.
func TestNamesAreBounded(t *testing.T) {
	dir := t.TempDir()
	tree, err := New(dir, 1<<40)
	must(t, err)
	defer tree.Close()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 15)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for i := 0; i*len(deep) <= maxNames; i++ {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("%s%d", deep, i), Mode: 0o755}))
	}
	must(t, w.Close())
	if err := tree.Apply(&layer); err == nil || !strings.Contains(err.Error(), "names of its directories") {
		t.Errorf("error %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
