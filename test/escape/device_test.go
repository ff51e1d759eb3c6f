package escape

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// device is the node of an accelerator, or of a device that goes with one.
type device struct {
	major, minor uint32
	own          bool // a container with GPU 0
}

// image returns the node's path in the attacks' images.
func (d device) image() string { return fmt.Sprintf("/nodes/%d:%d", d.major, d.minor) }

// accelerators lists the host's nodes by their names, and not by their majors as berth does.
func accelerators(t *testing.T, n *rig.Node) map[string]device {
	t.Helper()
	all := map[string]device{}
	// Nodes that each lease has, and nodes that come with GPU 0 and graphics.
	own := []string{"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "dri/card0", "dri/renderD128"}
	rig.Must(t, filepath.WalkDir(n.Path("/dev"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeCharDevice == 0 {
			return err
		}
		name := strings.TrimPrefix(path, n.Path("/dev/"))
		for _, prefix := range []string{"nvidia", "dri/", "gdrdrv", "infiniband/uverbs", "infiniband/umad"} {
			if strings.HasPrefix(name, prefix) {
				var st unix.Stat_t
				rig.Must(t, unix.Stat(path, &st))
				all["/dev/"+name] = device{unix.Major(st.Rdev), unix.Minor(st.Rdev), slices.Contains(own, name)}
				break
			}
		}
		return nil
	}))
	if len(all) < 40 {
		t.Fatalf("only %d accelerator nodes: %v", len(all), all)
	}
	return all
}
