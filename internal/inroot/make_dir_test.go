package inroot

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestMakeDir: a missing directory is made with exactly this mode, an existing one keeps its mode, and a link is not followed.
func TestMakeDir(t *testing.T) {
	root, host := makeTree(t)
	inside := filepath.Join(host, "root")
	defer unix.Umask(unix.Umask(0))
	testutil.Must(t, os.Mkdir(filepath.Join(inside, "old"), 0o700))
	for name, want := range map[string]os.FileMode{"new": os.ModeDir | os.ModeSticky | 0o777, "old": os.ModeDir | 0o700} {
		f, err := MakeDir(root, name, os.ModeSticky|0o777)
		testutil.Must(t, err)
		st, err := f.Stat()
		testutil.Must(t, err)
		testutil.Must(t, f.Close())
		if st.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, st.Mode(), want)
		}
	}
	writeFile(t, filepath.Join(inside, "file"), "")
	testutil.Must(t, os.Symlink(host, filepath.Join(inside, "absolute")))
	testutil.Must(t, os.Symlink("old", filepath.Join(inside, "link")))
	testutil.Must(t, os.Symlink("none", filepath.Join(inside, "dangling")))
	for _, name := range []string{"file", "absolute", "link", "dangling"} {
		if f, err := MakeDir(root, name, 0o777); err == nil {
			t.Errorf("%s was opened: %v", name, f.Close())
		}
	}
	if _, err := os.Lstat(filepath.Join(inside, "none")); err == nil {
		t.Error("a directory was made where a link leads")
	}
}
