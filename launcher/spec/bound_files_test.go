package spec

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestBoundDriverFiles: a task that binds a directory above the driver's files gets them without
// their owner, also when no GPU was leased since the boot.
func TestBoundDriverFiles(t *testing.T) {
	testutil.NeedRoot(t)
	top := t.TempDir()
	files := shared.InData(filepath.Join(top, "data")) // which nothing has made yet
	t.Cleanup(func() { _ = unix.Unmount(files.Mount, unix.MNT_DETACH) })
	if _, err := PlanMounts([]string{"/usr:/x"}, nil, files); err != nil || files.IsMounted() {
		t.Errorf("another directory: %v; the files are mounted: %v", err, files.IsMounted())
	}
	mounts, err := PlanMounts([]string{top + ":/x"}, nil, files)
	testutil.Must(t, err)
	if last := mounts[len(mounts)-1]; last.Destination != "/x/data/driver" || last.Source != files.Mount || !files.IsMounted() {
		t.Errorf("mounts %+v", mounts)
	}
}
