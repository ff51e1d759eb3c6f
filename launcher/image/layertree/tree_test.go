package layertree

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The names of a layer's directories don't fill the memory.
func TestNamesAreBounded(t *testing.T) {
	dir := t.TempDir()
	tree, err := New(dir, 1<<40)
	testutil.Must(t, err)
	defer tree.Close()
	if tree.maxNames != 128<<20 {
		t.Errorf("%d bytes are allowed", tree.maxNames)
	}
	tree.maxNames = 1 << 20
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 15)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for i := 0; i*len(deep) <= tree.maxNames; i++ {
		testutil.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("%s%d", deep, i), Mode: 0o755}))
	}
	testutil.Must(t, w.Close())
	if err := tree.Apply(&layer); err == nil || !strings.Contains(err.Error(), "names of its directories") {
		t.Errorf("error %v", err)
	}
}

// Zeros in a layer's files become holes, which need no room, and the files have their content and size.
func TestZerosAreHoles(t *testing.T) {
	testutil.NeedRoot(t)
	const mib = 1 << 20
	noise := make([]byte, 10_000)
	_, err := rand.Read(noise)
	testutil.Must(t, err)
	zeros := make([]byte, 8*mib)
	for name, tt := range map[string]struct {
		content []byte
		most    int64 // bytes on disk
	}{
		"empty": {nil, 0}, "zeros": {zeros, 0}, "one zero": {[]byte{0}, 0}, "noise": {bytes.Repeat(noise, 100), mib + 64<<10},
		"hole between":    {bytes.Join([][]byte{noise, zeros, noise, zeros[:5], noise}, nil), 64 << 10},
		"hole at the end": {bytes.Join([][]byte{zeros[:mib+1], noise, zeros}, nil), 32 << 10},
		"unaligned":       {bytes.Repeat(append(bytes.Clone(zeros[:300<<10]), 1), 20), 20 * 8 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tree, err := New(dir, 1<<40)
			testutil.Must(t, err)
			defer tree.Close()
			var layer bytes.Buffer
			w := tar.NewWriter(&layer)
			testutil.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: int64(len(tt.content))}))
			_, err = w.Write(tt.content)
			testutil.Must(t, err)
			testutil.Must(t, w.Close())
			testutil.Must(t, tree.Apply(&layer))
			got, err := os.ReadFile(filepath.Join(dir, "file"))
			testutil.Must(t, err)
			if !bytes.Equal(got, tt.content) {
				t.Errorf("%d bytes differ from the %d of the layer", len(got), len(tt.content))
			}
			var st unix.Stat_t
			testutil.Must(t, unix.Stat(filepath.Join(dir, "file"), &st))
			if st.Blocks*512 > tt.most {
				t.Errorf("%d bytes are on disk, want at most %d", st.Blocks*512, tt.most)
			}
		})
	}
}

func BenchmarkApplyFile(b *testing.B) {
	testutil.NeedRoot(b)
	content := make([]byte, 64<<20)
	_, err := rand.Read(content)
	testutil.Must(b, err)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		tree, err := New(b.TempDir(), 1<<40)
		testutil.Must(b, err)
		var layer bytes.Buffer
		w := tar.NewWriter(&layer)
		testutil.Must(b, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: int64(len(content))}))
		_, err = w.Write(content)
		testutil.Must(b, err)
		testutil.Must(b, tree.Apply(&layer))
		tree.Close()
	}
}
