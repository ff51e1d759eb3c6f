package discover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

const extraMajors = "Character devices:\n  1 mem\n195 nvidia\n240 nvidia-fs\n241 gdrdrv\n242 nvidia-nvswitch\n" +
	"243 nvidia-caps-imex-channels\n244 nvidia-fs\n\nBlock devices:\n 245 gdrdrv\n"

// mknod makes a node below the host's device tree. The file system of the test may be mounted with
// nodev; the node is never opened.
func mknod(t *testing.T, h gpu.Host, path string, kind uint32, major, minor uint32) {
	t.Helper()
	full := h.DevPath(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(full, kind|0o600, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
}

func TestFeatureNodes(t *testing.T) {
	testutil.NeedRoot(t)
	h := tree(t, map[string]string{"proc/devices": extraMajors, "dev/nvidia-fs9": "a file"}, nil)
	char := func(path string, major, minor uint32) { mknod(t, h, path, unix.S_IFCHR, major, minor) }
	char("nvidia-fs0", 240, 0)
	char("nvidia-fs1", 244, 1) // the driver's second major
	char("gdrdrv", 241, 0)
	char("nvidia-nvswitch1", 242, 1)
	char("nvidia-nvswitch0", 242, 0)
	char("nvidia-nvswitchctl", 242, 255)
	char("nvidia-caps-imex-channels/channel10", 243, 10)
	char("nvidia-caps-imex-channels/channel2", 243, 2)
	// Entries with the names of nodes that don't belong to the drivers.
	char("nvidia-fs2", 1, 1)
	char("nvidia-nvswitch2", 240, 2)
	char("nvidia-caps-imex-channels/channel3", 243, 4)
	char("nvidia-caps-imex-channels/channel", 243, 0)
	char("nvidia-caps-imex-channels/gdrdrv", 241, 0)
	char("channel5", 243, 5)
	char("nvidia0", 195, 0)
	mknod(t, h, "nvidia-fs3", unix.S_IFBLK, 240, 3)
	if err := os.Symlink("gdrdrv", h.DevPath("nvidia-fs4")); err != nil {
		t.Fatal(err)
	}
	want := []gpu.FeatureNode{
		{Feature: "gdrcopy", Path: "gdrdrv", Major: 241, Minor: 0},
		{Feature: "gds", Path: "nvidia-fs0", Major: 240, Minor: 0},
		{Feature: "gds", Path: "nvidia-fs1", Major: 244, Minor: 1},
		{Feature: "imex", Path: "nvidia-caps-imex-channels/channel2", Major: 243, Minor: 2},
		{Feature: "imex", Path: "nvidia-caps-imex-channels/channel10", Major: 243, Minor: 10},
		{Feature: "nvswitch", Path: "nvidia-nvswitch0", Major: 242, Minor: 0},
		{Feature: "nvswitch", Path: "nvidia-nvswitch1", Major: 242, Minor: 1},
		{Feature: "nvswitch", Path: "nvidia-nvswitchctl", Major: 242, Minor: 255},
	}
	got, err := listFeatureNodes(h)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	inv, err := Inventory(t.Context(), canned{}, withHostname(t, h))
	if d := cmp.Diff(want, inv.FeatureNodes); d != "" || err != nil {
		t.Error("inventory:", err, d)
	}
	if err := os.Remove(h.ProcPath("devices")); err != nil {
		t.Fatal(err)
	}
	if _, err := listFeatureNodes(h); err == nil {
		t.Error("nodes were believed without the list of majors")
	}
}

func withHostname(t *testing.T, h gpu.Host) gpu.Host {
	t.Helper()
	path := h.ProcPath("sys/kernel/hostname")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("node7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestFeatureNodesBounded(t *testing.T) {
	files := map[string]string{"proc/devices": extraMajors}
	for i := range maxFeatureNodes {
		files[fmt.Sprintf("dev/nvidia-fs%d", i)] = ""
	}
	h := tree(t, files, nil)
	if got, err := listFeatureNodes(h); got != nil || err != nil {
		t.Errorf("regular files: %v, %v", got, err)
	}
	if err := os.WriteFile(h.DevPath("gdrdrv"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := listFeatureNodes(h); err == nil || !strings.Contains(err.Error(), "more than 4096") {
		t.Error(err)
	}
}
