package setup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestReadFollowsLinks: as the kernel does, for a link's ".." is the parent of the
// directory that it is in, and not of the one by whose name it was reached.
func TestReadFollowsLinks(t *testing.T) {
	root := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"etc", "srv/docker", "srv/conf"} {
		must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(errors.Join(
		os.WriteFile(filepath.Join(root, "srv/conf/daemon.json"), []byte("{}"), 0o600),
		os.Symlink("../srv/here", filepath.Join(root, "etc/docker")),
		os.Symlink("docker", filepath.Join(root, "srv/here")),
		os.Symlink("../conf/daemon.json", filepath.Join(root, "srv/docker/daemon.json")),
		os.Symlink("loop", filepath.Join(root, "etc/loop")),
	))
	h := Host{FS: os.DirFS(root)}
	f, name, err := h.readTarget("/etc/docker/daemon.json")
	if err != nil || name != "/srv/conf/daemon.json" || string(f.Data) != "{}" || f.Mode != 0o600 {
		t.Errorf("got %+v at %s, %v", f, name, err)
	}
	if f, _, err := h.readTarget("/etc/loop/daemon.json"); err == nil && f.Exists {
		t.Errorf("a link in a circle: got %+v", f)
	}
}
