package berth

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestSharedFiles: containers get the idmapped mount. Where the machine doesn't support such a mount they get
// the directory itself, and another file system at the mount's place is an error.
func TestSharedFiles(t *testing.T) {
	testutil.NeedRoot(t)
	for _, tt := range []struct {
		name    string
		before  func(t *testing.T, data string)
		owned   string // of the snapshot
		mounted bool
		err     string
	}{
		{name: "mounted", mounted: true},
		{name: "known not to be supported", owned: "overlay"},
		{name: "not supported and unknown", before: mountOverlay},
		{name: "in the way", before: func(t *testing.T, data string) {
			testutil.Must(t, os.WriteFile(filepath.Join(data, "shared"), nil, 0o600))
		}, err: "not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := t.TempDir()
			if tt.before != nil {
				tt.before(t, data)
			}
			n := &Node{config: Config{Data: data}}
			d, err := n.mountShared(t.Context(), snapshot.Snapshot{OwnedFiles: tt.owned})
			t.Cleanup(func() { _ = unix.Unmount(filepath.Join(data, "shared"), unix.MNT_DETACH) })
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || d.Source != filepath.Join(data, "driver") || (d.Mount != "") != tt.mounted || d.IsMounted() != tt.mounted {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// TestBoundDriverFiles: in a bind mount of a directory above the driver's files, a container whose lease has
// no GPU gets them by the idmapped mount, even if it is the first container since the boot.
func TestBoundDriverFiles(t *testing.T) {
	testutil.NeedRoot(t)
	data := t.TempDir()
	mount := filepath.Join(data, "shared")
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	n := &Node{config: Config{Data: data}}
	spec := &specs.Spec{Mounts: []specs.Mount{{Destination: "/x", Type: "bind", Source: "/usr", Options: []string{"rbind"}}}}
	_, err := n.restrictBinds(t.Context(), spec, "/bundle")
	testutil.Must(t, err)
	if n.config.SharedFiles().IsMounted() {
		t.Error("the files are mounted for a bind mount that doesn't reach them")
	}
	spec.Mounts[0].Source = data
	_, err = n.restrictBinds(t.Context(), spec, "/bundle")
	testutil.Must(t, err)
	if last := spec.Mounts[len(spec.Mounts)-1]; last.Destination != "/x/driver" || last.Source != mount || !n.config.SharedFiles().IsMounted() {
		t.Errorf("mounts %+v", spec.Mounts)
	}
}

// mountOverlay puts a file system that can't be idmapped on the directory.
func mountOverlay(t *testing.T, data string) {
	t.Helper()
	top := t.TempDir()
	for _, dir := range []string{"upper", "work"} {
		testutil.Must(t, os.Mkdir(filepath.Join(top, dir), 0o755))
	}
	out, err := exec.Command("mount", "-t", "overlay", "-o", "lowerdir="+data+",upperdir="+top+"/upper,workdir="+top+"/work", "overlay", data).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(data, unix.MNT_DETACH) })
}
