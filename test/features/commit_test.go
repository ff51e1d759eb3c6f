package features

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// A container with everything, for instance firmware and sockets: a commit of it has nothing of the
// driver's.
func TestCommit(t *testing.T) {
	eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
		c := d.run(t, task{
			request: "1,+gds,+gdrcopy,+nvswitch,+imex=0-3,+fabricmanager", policy: everyFeature,
			env: []string{chosen + "all"},
		})
		c.checkFirmware()
		c.wantAnswer("connect "+fabricManager, "ok")
		for _, path := range filesOfCapabilities() {
			if !c.exists(path) {
				t.Errorf("%s isn't there", path)
			}
		}
		c.end()
		c.checkCommit()
	})
}

// checkFirmware checks that the firmware is the host's, and can't be changed.
func (c *container) checkFirmware() {
	c.t.Helper()
	const dir = "/lib/firmware/nvidia/"
	for _, name := range []string{"gsp_ga10x.bin", "gsp_tu10x.bin"} {
		path := filepath.Join(dir, c.d.State.Driver, name)
		data, err := os.ReadFile(c.d.Path(path))
		rig.Must(c.t, err)
		if len(data) == 0 {
			c.t.Fatalf("the host's %s is empty", path)
		}
		c.wantAnswer("cat "+path, string(data[:len(data)-1]))
		c.wantAnswer("open "+path, "ok EACCES EACCES")
	}
}

// No container gets the socket of persistenced, which has every GPU open, although the host has it.
func TestPersistencedStaysOutside(t *testing.T) {
	eachKind(t, "dgx-h100", oneOfEach(), func(t *testing.T, d entryPoint) {
		if info, err := os.Stat(d.Path(persistenced)); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Fatalf("the host has no %s: %v", persistenced, err)
		}
		for _, caps := range []string{"utility", "compute", "all"} {
			c := d.run(t, task{request: "1,+fabricmanager", policy: everyFeature, env: []string{chosen + caps}})
			c.wantAnswer("connect "+persistenced, "ENOENT")
			c.wantAnswer("connect "+fabricManager, "ok")
			c.checkFirmware()
			c.end()
			c.checkCommit()
		}
	})
}

// A read-only root isn't changed, and the container has everything that doesn't need a write.
func TestReadOnlyRoot(t *testing.T) {
	eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
		root := d.root(t)
		rig.Must(t, os.MkdirAll(filepath.Join(root, "usr/local/nvidia"), 0o755))
		c := d.run(t, task{request: "1,+gdrcopy", policy: everyFeature, root: root, change: func(s *specs.Spec) { s.Root.Readonly = true }})
		c.opens("/dev/gdrdrv")
		c.wantAnswer("open "+lib64+"libcuda.so.1", "ok EACCES EACCES")
		c.end()
		c.checkCommit()
	})
}
