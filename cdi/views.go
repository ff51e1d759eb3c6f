package cdi

import (
	"crypto/sha256"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/view"
	"github.com/berth-gpu/berth/gpu"
)

// ByPath is where a container finds its graphics nodes by PCI address.
const ByPath = "/dev/dri/by-path"

// Views make directories that show what was leased in place of all that the host
// has: /proc/driver, and the links to graphics nodes. Each is made once per set of
// devices below State, and bound read-only.
type Views struct {
	Host gpu.Host
	// State is the directory of what a reboot may forget. Views are below State/proc.
	State string
	// Epoch is when the inventory was taken, or whatever else views are to be made
	// anew for when it changes.
	Epoch string
	// InUse says whether a container may run on these devices, by UUID. nil: any may.
	InUse func(devices []string) bool
}

// Edits bind the views of the leased devices. A view that a container changed is
// made anew. No device, no edits.
func (v Views) Edits(inv gpu.Inventory, leased []gpu.Device, wish Wish) (edits.Edits, error) {
	if len(leased) == 0 {
		return edits.Edits{}, nil
	}
	devices, live := sortedUUIDs(leased), v.liveDirectories(wish.Features)
	tree, err := v.viewStore().Get(v.viewKey(inv, devices, live), devices, func() (view.Tree, error) {
		return v.viewTree(inv, leased, live)
	})
	if err != nil {
		return edits.Edits{}, fmt.Errorf("view of /proc/driver: %w", err)
	}
	e := edits.Edits{Mounts: []specs.Mount{bindView(path.Join(tree, "driver"), procDriver)}}
	for _, dir := range live {
		e.Mounts = append(e.Mounts, bindView(v.Host.ProcPath("driver", dir), path.Join(procDriver, dir)))
	}
	if wish.wantsDisplay() && len(graphicsLinks(inv, leased)) > 0 {
		e.Mounts = append(e.Mounts, bindView(path.Join(tree, "by-path"), ByPath))
	}
	return e, nil
}

// Prune removes views that no container can run on.
func (v Views) Prune() error { return v.viewStore().Prune() }

func (v Views) viewStore() view.Store {
	return view.Store{Dir: filepath.Join(v.State, "proc"), InUse: v.InUse}
}

// viewKey names the view: it holds all that the view is made of.
func (v Views) viewKey(inv gpu.Inventory, devices, live []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q\n", v.Epoch, inv.Driver.Version, live)
	for _, uuid := range devices {
		g, s, ok := inv.Lookup(uuid)
		if ok {
			fmt.Fprintf(h, "%s %s %d %v %v\n", uuid, g.PCI, g.Minor, g.DRI, g.Slices)
		}
		if s != nil {
			fmt.Fprintf(h, "%v\n", *s)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

func (v Views) viewTree(inv gpu.Inventory, leased []gpu.Device, live []string) (view.Tree, error) {
	t := view.Tree{Dirs: []string{"by-path"}, Files: map[string]string{}, Links: map[string]string{}}
	files, dirs, err := procTree(v.Host, inv, leased)
	if err != nil {
		return view.Tree{}, err
	}
	for name, content := range files {
		t.Files[path.Join("driver", name)] = content
	}
	for _, name := range slices.Concat(dirs, live) {
		t.Dirs = append(t.Dirs, path.Join("driver", name))
	}
	for name, target := range graphicsLinks(inv, leased) {
		t.Links[path.Join("by-path", name)] = target
	}
	return t, nil
}

// liveDirectories are the directories of /proc/driver that a feature needs as they are, of
// those that the host has.
func (v Views) liveDirectories(features []gpu.Feature) (dirs []string) {
	for _, f := range features {
		switch f.Name() {
		case gpu.FeatureGDS:
			dirs = append(dirs, "nvidia-fs")
		case gpu.FeatureNVSwitch:
			dirs = append(dirs, "nvidia-nvswitch", "nvidia-nvlink")
		}
	}
	return slices.DeleteFunc(dirs, func(dir string) bool { return !isKind(v.Host.ProcPath("driver", dir), unix.S_IFDIR) })
}

// bindView is a bind of data: nothing in it is ever run.
func bindView(source, destination string) specs.Mount {
	m := readOnlyBind(source, destination)
	m.Options = append(m.Options, "noexec")
	return m
}

// sortedUUIDs of the devices, in order.
func sortedUUIDs(devices []gpu.Device) []string {
	var all []string
	for _, d := range devices {
		all = append(all, d.UUID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
