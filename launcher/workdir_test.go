package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A runtime goes to the working directory with what it has open itself.
func TestWorkingDirectoryInProc(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		image := r.base.Image
		for link, to := range map[string]string{"link": "/proc/self/fd", "/dir/up": "../proc"} {
			at := filepath.Join(image, link)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(image, "proc/self/fd/7"), 0o755); err != nil {
			t.Fatal(err)
		}
		d := r.detach("sleep 1000", nil)
		defer d.killAndRemove()
		refuses := func(inside, dir string) {
			t.Helper()
			got := r.sh("echo ran", func(j *job) { j.Dir, j.Exec = dir, inside })
			if got.code != 125 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 ||
				!strings.Contains(got.stderr, "working directory "+dir+" lies in /proc") {
				t.Errorf("%s, exec %v: %+v", dir, inside != "", got)
			}
		}
		for _, dir := range []string{"/proc/self", "/proc/../proc/self/fd", "/link", "/link/7", "/dir/up"} {
			refuses("", dir)
		}
		for _, dir := range []string{"/proc", "/proc/1", "/proc/sys", "/dir/up"} {
			refuses(d.id, dir)
		}
		for _, dir := range []string{"/", "/dir", "/processes"} {
			if got := r.sh("pwd", func(j *job) { j.Dir = dir }); got.stdout != dir+"\n" {
				t.Errorf("%s: %+v", dir, got)
			}
		}
	})
}
