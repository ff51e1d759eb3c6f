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

// device is an accelerator's node, or one of what goes with them.
type device struct {
	major, minor uint32
	own          bool // a container that was given GPU 0 may have it
}

// image is where images of the attacks have a node of it.
func (d device) image() string { return fmt.Sprintf("/nodes/%d:%d", d.major, d.minor) }

// accelerators lists the host's nodes by their names, which isn't how berth knows
// them.
func accelerators(t *testing.T, n *rig.Node) map[string]device {
	t.Helper()
	all := map[string]device{}
	// What each lease has, and what those who ask for graphics get with GPU 0.
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
