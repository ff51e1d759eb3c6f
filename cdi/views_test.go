package cdi

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

func newViews(t *testing.T) Views {
	return Views{State: filepath.Join(t.TempDir(), "state"), Epoch: "1"}
}

// describeMount returns what a container sees of a mount: content, the target of a link, "/" for an empty
// directory.
func describeMount(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		name, err := filepath.Rel(dir, path)
		must(t, err)
		switch {
		case d.IsDir():
			entries, err := os.ReadDir(path)
			must(t, err)
			if len(entries) == 0 {
				all[name] = "/"
			}
		case d.Type()&fs.ModeSymlink != 0:
			all[name], err = os.Readlink(path)
			must(t, err)
		default:
			all[name] = read(t, path)
		}
		return nil
	}))
	return all
}

// Containers with the same devices share a view; any other input makes another view.
func TestViewsAreShared(t *testing.T) {
	v := newViews(t)
	source := func(v Views, inv gpu.Inventory, leased string, caps gpu.Capabilities) string {
		e, err := v.Edits(inv, devices(strings.Fields(leased)), Selection{Capabilities: caps})
		must(t, err)
		return e.Mounts[0].Source
	}
	inv := inventory()
	first := source(v, inv, "GPU-a GPU-b", gpu.Graphics)
	for what, same := range map[string]string{
		"again":            source(v, inv, "GPU-a GPU-b", gpu.Graphics),
		"in another order": source(v, inv, "GPU-b GPU-a", gpu.Graphics),
		"for a display":    source(v, inv, "GPU-a GPU-b", gpu.Display),
	} {
		if same != first {
			t.Errorf("%s: another view", what)
		}
	}
	later, moved := v, inventory()
	later.Epoch, moved.GPUs[0].PCI = "2", "0000:99:00.0"
	for what, other := range map[string]string{
		"fewer devices":     source(v, inv, "GPU-a", gpu.Graphics),
		"a later inventory": source(later, inv, "GPU-a GPU-b", gpu.Graphics),
		"another place":     source(v, moved, "GPU-a GPU-b", gpu.Graphics),
	} {
		if other == first {
			t.Errorf("%s: the same view", what)
		}
	}
}

// A container that may mount can write through the bind: the next one gets the original content.
func TestChangedViewIsMadeAnew(t *testing.T) {
	v := newViews(t)
	leased, selection := devices([]string{"GPU-a"}), Selection{Capabilities: gpu.Graphics}
	e, err := v.Edits(inventory(), leased, selection)
	must(t, err)
	want := describeMount(t, e.Mounts[0].Source)
	link := filepath.Join(e.Mounts[0].Source, "pci-0000:1b:00.0-card")
	must(t, os.Remove(link))
	must(t, os.Symlink("../card9", link))
	e, err = v.Edits(inventory(), leased, selection)
	must(t, err)
	if d := cmp.Diff(want, describeMount(t, e.Mounts[0].Source)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestLinksByPath(t *testing.T) {
	for _, tt := range []struct {
		leased    string
		selection gpu.Capabilities
		want      map[string]string // nil: no mount
	}{
		{"GPU-a", gpu.Compute | gpu.Utility | gpu.Video, nil},
		{"MIG-1", gpu.Graphics, nil},
		{"GPU-a", gpu.Graphics, map[string]string{"pci-0000:1b:00.0-card": "../card1", "pci-0000:1b:00.0-render": "../renderD129"}},
		{"GPU-b GPU-a", gpu.Display, map[string]string{
			"pci-0000:1b:00.0-card": "../card1", "pci-0000:1b:00.0-render": "../renderD129", "pci-0000:43:00.0-card": "../card2",
		}},
	} {
		t.Run(tt.leased+" "+tt.selection.String(), func(t *testing.T) {
			e, err := newViews(t).Edits(inventory(), devices(strings.Fields(tt.leased)), Selection{Capabilities: tt.selection})
			must(t, err)
			mounts := e.Mounts
			if tt.want == nil {
				if len(mounts) > 0 {
					t.Errorf("mounts %+v", mounts)
				}
				return
			}
			checkReasons(t, e)
			if d := cmp.Diff([]specs.Mount{bindView(mounts[0].Source, "/dev/dri/by-path")}, mounts); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if d := cmp.Diff(tt.want, describeMount(t, mounts[0].Source)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}
