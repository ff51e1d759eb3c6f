package features

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// With everything there is inside, firmware and sockets among it, a commit of the
// container carries none of it.
func TestCommit(t *testing.T) {
	through(t, "dgx-h100", kinds(), func(t *testing.T, d door) {
		c := d.run(t, task{
			request: "1,+gds,+gdrcopy,+nvswitch,+imex=0-3,+fabricmanager", policy: everyFeature,
			env: []string{chosen + "all"},
		})
		c.firmware()
		c.is("connect "+persistenced, "ok")
		c.is("connect "+fabricManager, "ok")
		for _, path := range tellTales() {
			if !c.exists(path) {
				t.Errorf("%s isn't there", path)
			}
		}
		c.end()
		c.commit()
	})
}

// firmware is the host's, and can't be changed.
func (c *container) firmware() {
	c.t.Helper()
	const dir = "/lib/firmware/nvidia/"
	for _, name := range []string{"gsp_ga10x.bin", "gsp_tu10x.bin"} {
		path := filepath.Join(dir, c.d.State.Driver, name)
		data, err := os.ReadFile(c.d.Path(path))
		rig.Must(c.t, err)
		if len(data) == 0 {
			c.t.Fatalf("the host's %s is empty", path)
		}
		c.is("cat "+path, string(data[:len(data)-1]))
		c.is("open "+path, "ok EACCES EACCES")
	}
}

// Persistenced is for those that have the driver's tools.
func TestPersistenced(t *testing.T) {
	through(t, "dgx-h100", few(), func(t *testing.T, d door) {
		for caps, want := range map[string]string{"utility": "ok", "compute": "ENOENT", "video,graphics": "ENOENT"} {
			c := d.run(t, task{request: "1", env: []string{chosen + caps}})
			c.is("connect "+persistenced, want)
			c.firmware()
			c.end()
			c.commit()
		}
	})
}

// In a root that can't be written to nothing is left either, and what can be there is.
func TestReadOnlyRoot(t *testing.T) {
	through(t, "dgx-h100", bundles(), func(t *testing.T, d door) {
		root := d.root(t)
		for _, dir := range []string{"usr/local/nvidia", "run"} {
			rig.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		}
		c := d.run(t, task{request: "1,+gdrcopy", policy: everyFeature, root: root, change: func(s *specs.Spec) { s.Root.Readonly = true }})
		c.opens("/dev/gdrdrv")
		c.is("open "+lib64+"libcuda.so.1", "ok EACCES EACCES")
		c.end()
		c.commit()
	})
}
