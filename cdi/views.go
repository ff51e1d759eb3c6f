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

// Views makes directories of links to graphics nodes, which show the leased nodes in place of all
// that the host has. There is one for each set of devices, below State; containers have it bound
// read-only.
type Views struct {
	// State is the directory of what a reboot may forget. Views are below State/proc.
	State string
	// Epoch identifies the inventory, for example by its time. Views are created again when it
	// changes.
	Epoch string
	// InUse reports whether a container may run on these devices, by UUID. nil means that all views
	// are in use.
	InUse func(devices []string) bool
	// DryRun makes no view: the edits name the directories that would be bound.
	DryRun bool
}

// Edits binds the view of the leased devices, if the container wants graphics and the devices have
// graphics nodes. A view that a container changed is made again.
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

// viewKey returns the view's name, which contains everything on which the view depends.
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
