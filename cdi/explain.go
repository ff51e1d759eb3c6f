package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// Reason is why a container has something: the devices and the words of the wish
// without which it would not be there. It is for people who ask afterwards; nothing
// that prepares a container looks at one.
type Reason struct {
	// Devices are UUIDs.
	Devices      []string
	Capabilities gpu.Capabilities
	Features     []gpu.Feature
	// Shared says that it comes with every device.
	Shared bool
}

// String says it in words.
func (r Reason) String() string {
	var all []string
	if r.Shared {
		all = append(all, "comes with every GPU")
	}
	if len(r.Devices) > 0 {
		all = append(all, "device "+strings.Join(r.Devices, ", "))
	}
	if r.Capabilities != 0 {
		all = append(all, "driver capability "+strings.ReplaceAll(r.Capabilities.String(), ",", " or "))
	}
	for _, f := range r.Features {
		all = append(all, "feature "+string(f))
	}
	return strings.Join(all, "; ")
}

// Reasons are those of paths in a container.
type Reasons map[string]Reason

func (r Reasons) add(name string, more Reason) {
	all := r[name]
	for _, d := range more.Devices {
		if !slices.Contains(all.Devices, d) {
			all.Devices = append(all.Devices, d)
		}
	}
	for _, f := range more.Features {
		if !slices.Contains(all.Features, f) {
			all.Features = append(all.Features, f)
		}
	}
	all.Capabilities |= more.Capabilities
	all.Shared = all.Shared || more.Shared
	r[name] = all
}

// splitCapabilities are a wish's capabilities one by one.
func splitCapabilities(caps gpu.Capabilities) (all []gpu.Capabilities) {
	for c := gpu.Compute; c <= gpu.NGX; c <<= 1 {
		if caps.Has(c) {
			all = append(all, c)
		}
	}
	return all
}

// WhyNodes says of each node that [Devices] gives what asked for it. It finds that
// out by asking for less, so that it can't tell another story than [Devices].
func WhyNodes(inv gpu.Inventory, leased []gpu.Device, majors map[string]uint32, wish Wish) (Reasons, error) {
	all := Reasons{}
	if len(leased) == 0 {
		return all, nil
	}
	plain, err := controlNodes(majors, Wish{})
	if err != nil {
		return nil, err
	}
	for _, n := range plain {
		all.add(n.Path, Reason{Shared: true})
	}
	for _, c := range splitCapabilities(wish.Capabilities) {
		nodes, err := controlNodes(majors, Wish{Capabilities: c})
		if err != nil {
			return nil, err
		}
		all.beyond(plain, nodes, Reason{Capabilities: c})
	}
	for _, d := range leased {
		if err := all.ofDevice(inv, d, majors, wish); err != nil {
			return nil, err
		}
	}
	for _, f := range wish.Features {
		nodes, err := featureNodes(inv, []gpu.Feature{f})
		if err != nil {
			return nil, err
		}
		all.beyond(nil, nodes, Reason{Features: []gpu.Feature{f}})
	}
	return all, nil
}

func (r Reasons) ofDevice(inv gpu.Inventory, d gpu.Device, majors map[string]uint32, wish Wish) error {
	plain, err := deviceNodes(inv, d, majors, Wish{})
	if err != nil {
		return err
	}
	r.beyond(nil, plain, Reason{Devices: []string{d.UUID}})
	for _, c := range splitCapabilities(wish.Capabilities) {
		nodes, err := deviceNodes(inv, d, majors, Wish{Capabilities: c})
		if err != nil {
			return err
		}
		r.beyond(plain, nodes, Reason{Devices: []string{d.UUID}, Capabilities: c})
	}
	return nil
}

// beyond gives the reason to what of the nodes isn't among the others.
func (r Reasons) beyond(others, nodes []edits.Node, why Reason) {
	for _, n := range nodes {
		if !slices.Contains(others, n) {
			r.add(n.Path, why)
		}
	}
}

// WhyServices says of each mount that [Services] gives what asked for it.
func WhyServices(h gpu.Host, wish Wish) (Reasons, error) {
	all := Reasons{}
	for _, c := range splitCapabilities(wish.Capabilities) {
		e, err := Services(h, Wish{Capabilities: c})
		if err != nil {
			return nil, err
		}
		for _, m := range e.Mounts {
			all.add(m.Destination, Reason{Capabilities: c})
		}
	}
	for _, f := range wish.Features {
		e, err := Services(h, Wish{Features: []gpu.Feature{f}})
		if err != nil {
			return nil, err
		}
		for _, m := range e.Mounts {
			all.add(m.Destination, Reason{Features: []gpu.Feature{f}})
		}
	}
	return all, nil
}

// WhyViews says of each mount that [Views] gives what asked for it.
func WhyViews(leased []gpu.Device, wish Wish) Reasons {
	return Reasons{ByPath: {Devices: sortedUUIDs(leased), Capabilities: wish.Capabilities & (gpu.Graphics | gpu.Display)}}
}

// WhyFiles says what asked for each file of the driver directory at home in the view
// of the capabilities: libraries and programs by their path below the view, the files
// that are bound one by one by their destination.
func WhyFiles(home string, caps gpu.Capabilities) (Reasons, error) {
	whole, err := driver.Load(home, caps)
	if err != nil {
		return nil, fmt.Errorf("look at the driver's files: %w", err)
	}
	all := Reasons{}
	for _, c := range splitCapabilities(caps) {
		part, err := driver.Load(home, c|caps&gpu.Compat32)
		if err != nil {
			return nil, fmt.Errorf("look at the driver's files: %w", err)
		}
		for _, name := range filesOf(part) {
			all.add(name, Reason{Capabilities: c})
		}
	}
	for _, l := range whole.Libraries {
		if l.Bits == 32 {
			all.add(l.File, Reason{Capabilities: gpu.Compat32})
		}
	}
	return all, nil
}

// filesOf a view, as [WhyFiles] names them.
func filesOf(dir driver.Dir) (names []string) {
	for _, l := range dir.Libraries {
		names = append(names, l.File)
	}
	for _, p := range dir.Programs {
		names = append(names, path.Join("bin", p))
	}
	for _, f := range dir.Extras {
		names = append(names, f.Destination)
	}
	return names
}

// LoaderFiles are the paths in a container that tell its dynamic loader where the
// driver's libraries are: the cache, and the line from which ldconfig makes it anew.
func LoaderFiles() (cache, line string) { return cachePath, path.Join(confPath+".d", confLine) }
