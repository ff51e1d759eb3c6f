package edits

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Apply changes the spec, in this order: removals (nodes, mounts, hooks, variables), the rule list,
// additions, and finally dropped capabilities and masked paths. It is deterministic and idempotent,
// and adds no duplicates. On an error the spec is unchanged. Slices and maps that the spec shares
// with others are not modified.
//
// Network and RDMA devices are an error: see [Edits.DeferNet].
//
// Edits of variables, groups, limits and capabilities are left out if the spec has no process, and
// system calls if it has no filter.
func (e Edits) Apply(spec *specs.Spec) error {
	if spec == nil {
		return errors.New("apply edits: no spec")
	}
	if err := e.Validate(); err != nil {
		return fmt.Errorf("apply edits: %w", err)
	}
	if len(e.NetDevices) > 0 {
		return fmt.Errorf("apply edits: network devices %q: a spec has no field for them that every runtime knows; they need a hook", slices.Sorted(maps.Keys(e.NetDevices)))
	}
	if rdma := slices.Concat(e.RDMALinks, e.RDMAInterfaces); len(rdma) > 0 {
		return fmt.Errorf("apply edits: RDMA devices %q: a spec has no field for them that every runtime knows; they need a hook", rdma)
	}
	e.removeHooks(spec)
	e.applyDevices(spec)
	e.applyMounts(spec)
	e.addHooks(spec)
	e.applyAnnotations(spec)
	e.applyMasks(spec)
	e.allowCalls(spec)
	if spec.Process != nil {
		e.applyProcess(spec.Process)
	}
	return nil
}

func (e Edits) applyDevices(spec *specs.Spec) {
	if len(e.Nodes)+len(e.RemoveNodes) == 0 && e.Rules == nil {
		return
	}
	linux := linuxOf(spec)
	linux.Devices = e.applyNodes(linux.Devices)
	if linux.Resources == nil {
		linux.Resources = &specs.LinuxResources{}
	}
	linux.Resources.Devices = e.applyRules(linux.Resources.Devices)
}

func (e Edits) applyNodes(have []specs.LinuxDevice) []specs.LinuxDevice {
	ours := make(map[string]specs.LinuxDevice, len(e.Nodes))
	for _, n := range e.Nodes {
		ours[path.Clean(n.Path)] = n.toSpec()
	}
	var all []specs.LinuxDevice
	for _, d := range have {
		p := path.Clean(d.Path)
		if n, ok := ours[p]; ok {
			delete(ours, p)
			all = append(all, n)
		} else if !slices.Contains(e.RemoveNodes, d.Path) {
			all = append(all, d)
		}
	}
	for _, n := range e.Nodes {
		if d, ok := ours[path.Clean(n.Path)]; ok {
			delete(ours, path.Clean(n.Path))
			all = append(all, d)
		}
	}
	return all
}

func (n Node) toSpec() specs.LinuxDevice {
	d := specs.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor, UID: &n.UID, GID: &n.GID}
	if n.Mode != 0 {
		d.FileMode = fileMode(n.Mode)
	}
	return d
}

// applyRules keeps those of the spec as they are written, unless they are replaced.
func (e Edits) applyRules(have []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup {
	if e.Rules != nil {
		have = make([]specs.LinuxDeviceCgroup, len(e.Rules))
		for i, r := range e.Rules {
			have[i] = r.Spec()
		}
	}
	known := make(map[Rule]bool, len(have)+len(e.Nodes))
	for _, h := range have {
		known[FromSpec(h).canonical()] = true
	}
	have = slices.Clip(have) // what follows isn't written into the spec's own list
	for _, n := range e.Nodes {
		r := n.Rule().canonical()
		if n.Access != "" && !known[r] {
			known[r] = true
			have = append(have, n.Rule().Spec())
		}
	}
	return have
}

func (e Edits) applyMounts(spec *specs.Spec) {
	if len(e.Mounts)+len(e.RemoveMounts) > 0 {
		e.changeMounts(spec)
	}
	if i := slices.IndexFunc(spec.Mounts, isUsualShm); i >= 0 && e.Shm != "" {
		spec.Mounts = slices.Clone(spec.Mounts)
		options := slices.DeleteFunc(slices.Clone(spec.Mounts[i].Options), isSize)
		spec.Mounts[i].Options = append(options, "size="+e.Shm)
	}
}

func (e Edits) changeMounts(spec *specs.Spec) {
	kept := slices.DeleteFunc(slices.Clone(spec.Mounts), func(m specs.Mount) bool {
		return e.replacesMount(m) || slices.ContainsFunc(e.RemoveMounts, func(r MountRef) bool { return r.matchesMount(m) })
	})
	spec.Mounts = append(kept, e.Mounts...)
}

// isUsualShm reports whether m is /dev/shm with the engines' default size, which docker and
// containerd write differently. A bind mount isn't.
func isUsualShm(m specs.Mount) bool {
	usual := []string{"size=65536k", "size=67108864", "size=64m"}
	return path.Clean(m.Destination) == "/dev/shm" && m.Type == "tmpfs" &&
		slices.ContainsFunc(m.Options, func(o string) bool { return slices.Contains(usual, o) })
}

func isSize(option string) bool { return strings.HasPrefix(option, "size=") }

func (e Edits) replacesMount(m specs.Mount) bool {
	return slices.ContainsFunc(e.Mounts, func(o specs.Mount) bool {
		return path.Clean(o.Destination) == path.Clean(m.Destination)
	})
}

func (r MountRef) matchesMount(m specs.Mount) bool {
	return path.Clean(r.Destination) == path.Clean(m.Destination) && (r.Source == "" || r.Source == m.Source)
}

func (e Edits) applyProcess(p *specs.Process) {
	p.Env = e.applyEnv(p.Env)
	for _, gid := range e.GIDs {
		if !slices.Contains(p.User.AdditionalGids, gid) {
			p.User.AdditionalGids = append(slices.Clip(p.User.AdditionalGids), gid)
		}
	}
	p.Rlimits = slices.Clone(p.Rlimits)
	for _, l := range e.Rlimits {
		i := slices.IndexFunc(p.Rlimits, func(h specs.POSIXRlimit) bool { return h.Type == l.Type })
		if i < 0 {
			p.Rlimits = append(p.Rlimits, l)
		} else {
			p.Rlimits[i] = l
		}
	}
	if c := p.Capabilities; c != nil && len(e.DropCapabilities) > 0 {
		for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Inheritable, &c.Permitted, &c.Ambient} {
			*set = slices.DeleteFunc(slices.Clone(*set), e.dropsCapability)
		}
	}
}

// dropsCapability ignores case, as crun does when it reads names of capabilities.
func (e Edits) dropsCapability(name string) bool {
	return slices.ContainsFunc(e.DropCapabilities, func(d string) bool { return strings.EqualFold(d, name) })
}

// applyEnv replaces the first variable of each name and appends new ones in the order of their
// names. Other duplicates in the list stay.
func (e Edits) applyEnv(have []string) []string {
	if len(e.Env)+len(e.UnsetEnv) == 0 {
		return have
	}
	set := make(map[string]bool, len(e.Env))
	var all []string
	for _, entry := range have {
		name, _, _ := strings.Cut(entry, "=")
		value, ours := e.Env[name]
		if set[name] || !ours && slices.Contains(e.UnsetEnv, name) {
			continue
		}
		if ours {
			set[name], entry = true, name+"="+value
		}
		all = append(all, entry)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		if !set[name] {
			all = append(all, name+"="+e.Env[name])
		}
	}
	return all
}

func (e Edits) applyAnnotations(spec *specs.Spec) {
	if len(e.Annotations) == 0 {
		return
	}
	all := make(map[string]string, len(spec.Annotations)+len(e.Annotations))
	maps.Copy(all, spec.Annotations)
	maps.Copy(all, e.Annotations)
	spec.Annotations = all
}

func (e Edits) applyMasks(spec *specs.Spec) {
	for _, p := range e.ReadonlyPaths {
		if linux := linuxOf(spec); !slices.Contains(linux.ReadonlyPaths, p) {
			linux.ReadonlyPaths = append(slices.Clip(linux.ReadonlyPaths), p)
		}
	}
	for _, p := range e.MaskedPaths {
		if linux := linuxOf(spec); !slices.Contains(linux.MaskedPaths, p) {
			linux.MaskedPaths = append(slices.Clip(linux.MaskedPaths), p)
		}
	}
}

func linuxOf(spec *specs.Spec) *specs.Linux {
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	return spec.Linux
}
