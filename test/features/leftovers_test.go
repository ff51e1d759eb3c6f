package features

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// files lists everything below a directory: names, kinds, and content.
func files(t *testing.T, root string) (all []string) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprint(filepath.Clean("/"+strings.TrimPrefix(path, root)), " ", info.Mode())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", len(data), sha256.Sum256(data))
		}
		all = append(all, line)
		return nil
	}))
	return all
}

// checkNothingLeft checks that nothing of a deleted container is left: no live lease, no cgroup, and no
// mount anywhere in the node.
func (c *container) checkNothingLeft() {
	c.t.Helper()
	for _, l := range c.d.Leases(c.t) {
		if l.Live || l.Owner.Container == c.id && c.d.way != byHook { // whose hook isn't called at the end
			c.t.Errorf("lease is left: %+v", l)
		}
	}
	rig.Must(c.t, filepath.WalkDir(c.d.Path("/sys/fs/cgroup"), func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir(): // others' cgroups come and go
		case e.Name() == "unified": // where nothing is mounted, crun makes directories
			return filepath.SkipDir
		case strings.Contains(e.Name(), c.id):
			c.t.Errorf("cgroup is left: %s", path)
		}
		return nil
	}))
	for line := range strings.Lines(c.d.Do(c.t, "cat", "/proc/self/mountinfo")) {
		if strings.Contains(line, "/berth/driver/") || strings.Contains(line, c.root) {
			c.t.Errorf("mount is left: %s", line)
		}
	}
}

// wantRefused checks that no container was created, for reasons in one line, and that nothing was
// changed, in its root neither.
func (d entryPoint) wantRefused(t *testing.T, k task, want ...string) {
	t.Helper()
	c, said := d.try(t, k)
	if said.Code == 0 {
		t.Error("it was made")
		return
	}
	c.checkReason(said.Err, want)
	if d.way == byHook {
		_ = d.Run(t, c.runtime("delete", "--force", c.id)) // as engines do
	}
	c.checkNothingLeft()
	if d := cmp.Diff(c.before, files(t, c.root)); d != "" {
		t.Errorf("the root was changed (-before +after):\n%s", d)
	}
	if c.bundle == "" {
		return
	}
	if data, err := os.ReadFile(c.configJSON()); err != nil || string(data) != c.written {
		t.Errorf("config.json isn't what the engine wrote: %v", err)
	}
	if _, err := os.Stat(c.configJSON() + ".berth"); err == nil {
		t.Error("config.json.berth is left")
	}
}

// checkReason checks that everything wanted is in one line, the only one of berth's.
func (c *container) checkReason(text string, want []string) {
	c.t.Helper()
	var ours []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "berth: ") || strings.HasPrefix(line, "berth-hook: ") {
			ours = append(ours, line)
		}
	}
	if len(ours) == 0 && c.d.runtime == "runc" { // it has the hook's words within its own line
		ours = slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(l string) bool { return !strings.Contains(l, "berth-hook: ") })
	}
	if len(ours) != 1 {
		c.t.Errorf("%d lines say why: %q", len(ours), text)
		return
	}
	line := strings.ReplaceAll(ours[0], `\"`, `"`) // as runc quotes the words of its hook
	for _, w := range want {
		if !strings.Contains(line, w) {
			c.t.Errorf("%q doesn't say %q", ours[0], w)
		}
	}
}

// checkCommit fails if a commit of the deleted container would have anything of the driver's: only the
// loader's cache and configuration may be new or changed in its root, beside empty files and
// directories that were mount points.
func (c *container) checkCommit() {
	c.t.Helper()
	var odd []string
	for _, line := range files(c.t, c.root) {
		words := strings.Fields(line)
		name, mode := words[0], words[1]
		switch {
		case slices.Contains(c.before, line):
		case name == "/etc/ld.so.cache", name == "/etc/ld.so.conf", name == "/etc/ld.so.conf.d/00-berth.conf":
		case strings.HasPrefix(mode, "d"):
		case strings.HasPrefix(mode, "-") && words[2] == "0":
		default:
			odd = append(odd, line)
		}
	}
	if odd != nil {
		c.t.Errorf("a commit would carry:\n%s", strings.Join(odd, "\n"))
	}
}
