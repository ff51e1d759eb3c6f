package cdi

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/view"
	"github.com/berth-gpu/berth/gpu"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ByPath is where a container finds its graphics nodes by PCI address.
const ByPath = "/dev/dri/by-path"

// Views make the directories of links to graphics nodes that show what was leased in
// place of all that the host has. Each is made once per set of devices below State, and
// bound read-only.
type Views struct {
	// State is the directory of what a reboot may forget. Views are below State/proc.
	State string
	// Epoch identifies the inventory, for example by its time. Views are created again when it
	// changes.
	Epoch string
	// InUse says whether a container may run on these devices, by UUID. nil: any may.
	InUse func(devices []string) bool
	// DryRun makes no view: the edits say what would be bound.
	DryRun bool
}

// Edits bind the view of the leased devices where the container wants graphics and they have
// some. A view that a container changed is made anew.
func (v Views) Edits(inv gpu.Inventory, leased []gpu.Device, selection Selection) (edits.Edits, error) {
	links := graphicsLinks(inv, leased)
	if !selection.wantsDisplay() || len(links) == 0 {
		return edits.Edits{}, nil
	}
	devices := sortedUUIDs(leased)
	tree, err := v.viewStore().Get(v.viewKey(inv, devices), devices, func() (view.Tree, error) {
		return view.Tree{Links: links}, nil
	})
	if err != nil {
		return edits.Edits{}, fmt.Errorf("view of %s: %w", ByPath, err)
	}
	var e edits.Edits
	e.AddMounts("device "+strings.Join(devices, ", ")+"; "+selection.whyDisplay(), bindView(tree, ByPath))
	return e, nil
}

// Prune removes views that no container can run on.
func (v Views) Prune() error { return v.viewStore().Prune() }

func (v Views) viewStore() view.Store {
	return view.Store{Dir: filepath.Join(v.State, "proc"), InUse: v.InUse, DryRun: v.DryRun}
}

// viewKey names the view: it holds all that the view is made of.
func (v Views) viewKey(inv gpu.Inventory, devices []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", v.Epoch)
	for _, uuid := range devices {
		if g, _, ok := inv.Lookup(uuid); ok {
			fmt.Fprintf(h, "%s %s %v\n", uuid, g.PCI, g.DRI)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

// bindView returns a read-only, noexec bind mount.
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
