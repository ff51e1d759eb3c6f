package image

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
	tree, err := newTree(dir)
	must(t, err)
	defer tree.close()
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 15)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for i := 0; i*len(deep) <= maxNames; i++ {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("%s%d", deep, i), Mode: 0o755}))
	}
	must(t, w.Close())
	if err := tree.unpack(&layer, 1<<40); err == nil || !strings.Contains(err.Error(), "names of its directories") {
		t.Errorf("error %v", err)
	}
}
