package image

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// makeSquashfs makes a squashfs of a file with a content.
func makeSquashfs(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	testutil.Must(t, os.Mkdir(dir+"/root", 0o755))
	testutil.Must(t, os.WriteFile(dir+"/root/file", []byte(content), 0o644))
	testutil.Must(t, os.Truncate(dir+"/root/file", 1<<20))
	out, err := exec.Command("mksquashfs", dir+"/root", dir+"/squashfs", "-all-root", "-noappend", "-quiet", "-no-progress").CombinedOutput()
	if err != nil {
		t.Fatalf("mksquashfs: %v: %s", err, out)
	}
	return dir + "/squashfs"
}

// unpackSquashfs unpacks the squashfs that a file consists of. between is called when the file was opened.
func unpackSquashfs(t *testing.T, s Store, path string, between func()) (string, error) {
	t.Helper()
	f, err := os.Open(path)
	testutil.Must(t, err)
	defer f.Close()
	st, err := f.Stat()
	testutil.Must(t, err)
	img, err := s.OpenSquashfs(t.Context(), f, 0, st.Size(), path, nil)
	if err != nil {
		return "", err
	}
	defer img.Close()
	between()
	dirs, err := s.Unpack(t.Context(), img, nil)
	if err != nil {
		return "", err
	}
	return dirs[0], nil
}

// TestSquashfs: a squashfs is unpacked once. One that changes while it is unpacked is an error, and so never stands for the content that it had before.
func TestSquashfs(t *testing.T) {
	testutil.NeedRoot(t)
	s := Store{Dir: t.TempDir()}
	good, bad := makeSquashfs(t, "good"), makeSquashfs(t, "evil")
	data, err := os.ReadFile(bad)
	testutil.Must(t, err)
	changing := filepath.Join(t.TempDir(), "changing")
	original, err := os.ReadFile(good)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(changing, original, 0o644))
	if dir, err := unpackSquashfs(t, s, changing, func() { testutil.Must(t, os.WriteFile(changing, data, 0o644)) }); !errors.Is(err, errChanged) {
		t.Errorf("a file that changes: %s, %v", dir, err)
	}
	first, err := unpackSquashfs(t, s, good, func() {})
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(changing, original, 0o644))
	again, err := unpackSquashfs(t, s, changing, func() {})
	if again != first || err != nil {
		t.Errorf("a copy is unpacked in %s, and the file in %s; %v", again, first, err)
	}
	text, err := os.ReadFile(filepath.Join(first, "file"))
	if !strings.HasPrefix(string(text), "good") || err != nil {
		t.Errorf("content %.8q, %v", text, err)
	}
	// A file that was unpacked before isn't read again.
	f, err := os.Open(good)
	testutil.Must(t, err)
	defer f.Close()
	img, err := s.OpenSquashfs(t.Context(), f, 0, int64(len(original)), good, nil)
	testutil.Must(t, err)
	defer img.Close()
	if o, ok := img.origin.(*squashfsOrigin); !ok || o.sums != nil {
		t.Error("a file that was unpacked is read again")
	}
	testutil.Must(t, os.WriteFile(changing, data, 0o644))
	if dir, err := unpackSquashfs(t, s, changing, func() {}); dir == first || err != nil {
		t.Errorf("another content at the same path: %s, %v", dir, err)
	}
}

// TestSquashfsLimit: a squashfs whose files need more than a layer may have is an error, and nothing of it stays.
func TestSquashfsLimit(t *testing.T) {
	testutil.NeedRoot(t)
	s := Store{Dir: t.TempDir(), MaxLayer: 1 << 20} // the file's size without that of its directory entry
	dir, err := unpackSquashfs(t, s, makeSquashfs(t, "x"), func() {})
	if err == nil || !strings.Contains(err.Error(), "more than the 1048576 bytes that a layer may have") {
		t.Errorf("%s, %v", dir, err)
	}
	if left := s.listLayerDirs(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
