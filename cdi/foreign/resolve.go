package foreign

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// Resolve returns what a container of the named devices needs, in full: nodes, mounts, environment,
// hooks, groups, network devices. Missing fields of a node are read from the host's node. The
// access mknod is removed.
//
// An edit that berth can't make (intelRdt) is an error; it isn't left out silently.
func (r Registry) Resolve(names []string) (edits.Edits, error) {
	var all edits.Edits
	var specsDone []string
	for _, name := range names {
		s, d, err := r.Find(name)
		if err != nil {
			return edits.Edits{}, err
		}
		parts := []cdispecs.ContainerEdits{d.Edits}
		if !slices.Contains(specsDone, s.Path+s.Kind) {
			specsDone = append(specsDone, s.Path+s.Kind)
			parts = []cdispecs.ContainerEdits{s.Edits, d.Edits}
		}
		for _, p := range parts {
			if all, err = addEdits(all, p, "CDI device "+name); err != nil {
				return edits.Edits{}, fmt.Errorf("CDI device %s (%s): %w", name, s.Path, err)
			}
		}
	}
	return all, nil
}

// Device returns the named device as something that can be leased. Its Nodes are those of the device's own edits, without
// those that the spec lists for all of its devices and those of [controlNodes]. A node that can't be read is an error, and
// so is a name that no spec defines.
func (r Registry) Device(name string) (gpu.Device, error) {
	s, d, err := r.Find(name)
	if err != nil {
		return gpu.Device{}, err
	}
	return s.toLeased(d, controlNodes())
}

// Devices returns all devices, in the order of the registry. A device with a node that can't be read has no Nodes; Device
// fails for it, so it can't be leased.
func (r Registry) Devices() []gpu.Device {
	all, control := []gpu.Device{}, controlNodes()
	for _, s := range r.Specs {
		for _, d := range s.Devices {
			leased, err := s.toLeased(d, control)
			if err != nil {
				leased = gpu.CDIDevice(s.Kind + "=" + d.Name)
			}
			all = append(all, leased)
		}
	}
	return all
}

func (s Spec) toLeased(d Device, control []string) (gpu.Device, error) {
	leased := gpu.CDIDevice(s.Kind + "=" + d.Name)
	own, err := listNumbers(d.Edits)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("CDI device %s (%s): %w", leased.UUID, s.Path, err)
	}
	common, err := listNumbers(s.Edits)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("CDI device %s (%s): %w", leased.UUID, s.Path, err)
	}
	leased.Nodes = gpu.JoinNodes(slices.DeleteFunc(own, func(n string) bool { return slices.Contains(control, n) || slices.Contains(common, n) }))
	leased.CommonNodes = gpu.JoinNodes(slices.DeleteFunc(common, func(n string) bool { return slices.Contains(control, n) }))
	return leased, nil
}

// listNumbers returns the device numbers of the nodes, such as "c 240:7".
func listNumbers(c cdispecs.ContainerEdits) (all []string, err error) {
	for _, d := range c.DeviceNodes {
		n, err := toNode(*d)
		if err != nil {
			return nil, err
		}
		all = append(all, n.Number())
	}
	return all, nil
}

// controlNodes returns the numbers of nodes that vendors list with each of their devices, and that give access to no
// device by themselves: AMD's compute interface, the RDMA connection manager and the containers of VFIO.
func controlNodes() (all []string) {
	for _, path := range []string{"/dev/kfd", "/dev/infiniband/rdma_cm", "/dev/vfio/vfio", "/dev/iommu"} {
		if n, err := toNode(cdispecs.DeviceNode{Path: path}); err == nil {
			all = append(all, n.Number())
		}
	}
	return all
}

// addEdits merges one set of container edits into those that there are. A variable that
// two devices set is that of the last, as the CDI specification has it.
func addEdits(all edits.Edits, c cdispecs.ContainerEdits, why string) (edits.Edits, error) {
	if c.IntelRdt != nil {
		return edits.Edits{}, fmt.Errorf("it asks for intelRdt, which berth doesn't set")
	}
	e := edits.Edits{GIDs: additionalGroups(c.AdditionalGIDs)}
	for _, gid := range e.GIDs {
		e.AddReason("group", strconv.Itoa(int(gid)), why)
	}
	for _, n := range c.DeviceNodes {
		node, err := toNode(*n)
		if err != nil {
			return edits.Edits{}, err
		}
		e.AddNodes(why, node)
	}
	for _, m := range c.Mounts {
		e.AddMounts(why, toMount(*m))
	}
	for _, h := range c.Hooks {
		hook := edits.Hook{Stage: edits.Stage(h.HookName), Hook: specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout}}
		e.Hooks = append(e.Hooks, hook)
		e.AddReason("hook", hook.Name(), why)
	}
	for _, n := range c.NetDevices {
		if e.NetDevices == nil {
			e.NetDevices = map[string]string{}
		}
		e.NetDevices[n.HostInterfaceName] = n.Name
		e.AddReason("network", n.HostInterfaceName, why)
	}
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		e.SetEnv(why, name, value)
		delete(all.Env, name)
		all.Reasons = slices.DeleteFunc(all.Reasons, func(r edits.Reason) bool { return r.Kind == "variable" && r.Name == name })
	}
	return edits.Merge(all, e)
}

// additionalGroups leaves out 0, which the specification says to ignore.
func additionalGroups(gids []uint32) []uint32 {
	return slices.DeleteFunc(slices.Clone(gids), func(g uint32) bool { return g == 0 })
}

func toMount(m cdispecs.Mount) specs.Mount {
	o := specs.Mount{Source: m.HostPath, Destination: m.ContainerPath, Type: m.Type, Options: m.Options}
	if bound := slices.Contains(o.Options, "bind") || slices.Contains(o.Options, "rbind"); !bound && (o.Type == "" || o.Type == "bind") {
		o.Options = append(slices.Clip(o.Options), "rbind")
	}
	if o.Type == "" {
		o.Type = "bind"
	}
	return o
}

// toNode converts a node, and reads from the host's node what the spec leaves out.
func toNode(d cdispecs.DeviceNode) (edits.Node, error) {
	n := edits.Node{Path: path.Clean(d.Path), Type: d.Type, Major: d.Major, Minor: d.Minor, Access: accessWithoutMknod(d.Permissions)}
	if d.Type == "" || d.Major == 0 && d.Type != "p" {
		host := d.HostPath
		if host == "" {
			host = d.Path
		}
		var st unix.Stat_t
		if err := unix.Lstat(host, &st); err != nil {
			return n, fmt.Errorf("node %s: %w", host, err)
		}
		kind, ok := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[st.Mode&unix.S_IFMT]
		switch {
		case !ok:
			return n, fmt.Errorf("node %s is not a device", host)
		case d.Type != "" && d.Type != kind && (d.Type != "u" || kind != "c"):
			return n, fmt.Errorf("node %s is of type %q, the spec says %q", host, kind, d.Type)
		}
		n.Type, n.Major, n.Minor = kind, int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		n.Mode = st.Mode & 0o777
	}
	switch n.Type {
	case "u":
		n.Type = "c"
	case "p":
		return n, fmt.Errorf("node %s is a FIFO, which berth doesn't make", d.Path)
	}
	if d.FileMode != nil {
		n.Mode = uint32(d.FileMode.Perm())
	}
	if d.UID != nil {
		n.UID = *d.UID
	}
	if d.GID != nil {
		n.GID = *d.GID
	}
	return n, nil
}

// accessWithoutMknod removes "m" from a node's permissions.
func accessWithoutMknod(permissions string) string {
	switch permissions {
	case "":
		return "rw"
	case "none":
		return ""
	}
	return strings.ReplaceAll(permissions, "m", "")
}
