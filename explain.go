package berth

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Injection is one addition to a container that its lease has caused.
type Injection struct {
	// Kind is "device", "directory", "library", "program", "firmware", "file", "socket",
	// "variable", "annotation", "rule", "hook", "network", "limit", "mask" or "group".
	Kind string `json:"kind"`
	// Name is the path in the container, or the name of a variable, rule or hook.
	Name string `json:"name"`
	// Source is a path of the host or a device's numbers, "" if the kind has neither.
	Source string `json:"source,omitempty"`
	// Why names the device, driver capability, feature or policy that caused the addition.
	Why string `json:"why"`
}

// Explain lists what a container's lease has added to it, with the reasons. spec is the
// spec from which the runtime has created the container. If it lacks the edits, because a
// hook has applied them to the container, Explain applies them to spec. root is the
// container's root, in which Explain looks for files that berth has written; root may be
// nil.
//
// Explain composes the edits of the lease again in a dry run, and lists those that the
// spec has. It writes nothing to disk.
func (n *Node) Explain(ctx context.Context, spec *specs.Spec, lease ledger.Lease, root *os.File) ([]Injection, error) {
	all, _, err := n.compose(ctx, spec, &lease, nil, Plan{dryRun: true})
	deferred := all.DeferNet(n.config.hookCall()...)
	if err == nil && spec.Annotations[LeaseAnnotation] != lease.ID {
		err = deferred.Apply(spec)
	}
	if err != nil {
		return nil, fmt.Errorf("explain lease %s: %w", lease.ID, err)
	}
	x := explainer{config: n.config, edits: deferred, interfaces: all.NetDevices}
	x.explainSpec(spec, root)
	return x.found, nil
}

// describeGPUs is gatherGPUs for a dry run. It describes the driver files that the spec
// mounts, or, if it mounts none, the files that it would get now.
func (n *Node) describeGPUs(ctx context.Context, p *Plan, spec *specs.Spec, _ *os.File, lease ledger.Lease) (files func() (cdi.Prepared, error), err error) {
	env := environmentOf(spec)
	if p.Selection, err = n.readSelection(env, lease.Request); err != nil {
		return nil, err
	}
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	common := n.config.SharedFiles()
	home, target, bound := s.DriverDir, cdi.Target, false
	for _, m := range spec.Mounts {
		if h := driver.HomeOf(common.FileOf(m.Source)); h != "" {
			home, target, bound = h, m.Destination, true
		}
	}
	dir, err := driver.Load(home, p.Selection.Capabilities)
	if err != nil && !bound {
		return nil, err // a mounted directory may have been taken out of use since: its files are then unknown
	}
	if !common.IsMounted() {
		common.Mount = ""
	}
	with, err := n.addGPUEdits(p, s, lease, common)
	return func() (f cdi.Prepared, err error) {
		f.Edits = cdi.DescribeRoot(target, env, dir, p.Selection.Capabilities, with)
		f.Edits.AddReason("mount", target, describeCapabilities(env, p.Selection.Capabilities))
		return f, nil
	}, err
}

// describeCapabilities returns the driver's capabilities and where they were chosen.
func describeCapabilities(env []string, caps gpu.Capabilities) string {
	value := lookupVariable(env, "NVIDIA_DRIVER_CAPABILITIES")
	if strings.TrimSpace(value) == "" {
		return fmt.Sprintf("driver capabilities %s, the default", caps)
	}
	return fmt.Sprintf("driver capabilities %s, chosen by NVIDIA_DRIVER_CAPABILITIES=%s within policy", caps, value)
}

// explainer collects the edits that a spec has.
type explainer struct {
	config     Config
	edits      edits.Edits
	interfaces map[string]string // edits.Edits.NetDevices
	found      []Injection
}

func (x *explainer) addInjection(kind, name, source, why string) {
	if why != "" {
		x.found = append(x.found, Injection{Kind: kind, Name: name, Source: source, Why: why})
	}
}

// explainSpec goes through a prepared spec.
func (x *explainer) explainSpec(spec *specs.Spec, root *os.File) {
	linux := spec.Linux
	if linux == nil {
		linux = &specs.Linux{}
	}
	for _, d := range linux.Devices {
		x.addInjection("device", d.Path, fmt.Sprintf("%s %d:%d", d.Type, d.Major, d.Minor), x.edits.Why("device", d.Path))
	}
	for _, m := range spec.Mounts {
		x.explainMount(m)
	}
	if spec.Process != nil {
		x.explainProcess(spec.Process)
	}
	if value, ok := spec.Annotations[LeaseAnnotation]; ok {
		x.addInjection("annotation", LeaseAnnotation+"="+value, "", x.edits.Why("annotation", LeaseAnnotation))
	}
	x.explainHooks(spec.Hooks)
	for _, host := range slices.Sorted(maps.Keys(x.interfaces)) {
		x.addInjection("network", cmp.Or(x.interfaces[host], host), host, x.edits.Why("network", host))
	}
	x.explainRoot(root)
	for _, p := range linux.ReadonlyPaths {
		x.addInjection("mask", p, "", x.edits.Why("mask", p))
	}
	x.explainRules(linux)
}

// explainMount explains a mount that berth has added. A mount of one of berth's own
// directories counts whatever its path is, because the directory can have been rebuilt
// since. Any other mount has to equal one of the edits: a user's own mount can have the
// same destination.
func (x *explainer) explainMount(m specs.Mount) {
	own := x.config.SharedFiles().FileOf(m.Source) != "" || strings.HasPrefix(m.Source, x.config.State+"/")
	if !own && !slices.ContainsFunc(x.edits.Mounts, func(o specs.Mount) bool { return o.Destination == m.Destination && o.Source == m.Source }) {
		return
	}
	x.addInjection(kindOfMount(m), m.Destination, m.Source, x.edits.Why("mount", m.Destination))
	for _, r := range x.edits.Reasons {
		if below, ok := strings.CutPrefix(r.Name, m.Destination+"/"); ok && (r.Kind == "library" || r.Kind == "program") {
			x.addInjection(r.Kind, r.Name, path.Join(m.Source, below), r.Why)
		}
	}
}

func kindOfMount(m specs.Mount) string {
	switch fi, err := os.Lstat(m.Source); {
	case strings.Contains(m.Destination, "/firmware/"):
		return "firmware"
	case path.Base(path.Dir(m.Source)) == "bin":
		return "program"
	case err == nil && fi.Mode().IsRegular():
		return "file"
	case err == nil && fi.Mode()&os.ModeSocket != 0:
		return "socket"
	}
	return "directory"
}

func (x *explainer) explainProcess(p *specs.Process) {
	for _, entry := range p.Env {
		name, value, _ := strings.Cut(entry, "=")
		if set, ok := x.edits.Env[name]; ok && set == value {
			x.addInjection("variable", entry, "", x.edits.Why("variable", name))
		}
	}
	for _, l := range p.Rlimits {
		x.addInjection("limit", l.Type, "", x.edits.Why("limit", l.Type))
	}
	for _, gid := range p.User.AdditionalGids {
		x.addInjection("group", fmt.Sprint(gid), "", x.edits.Why("group", fmt.Sprint(gid)))
	}
}

func (x *explainer) explainHooks(h *specs.Hooks) {
	if h == nil {
		return
	}
	for _, hook := range slices.Concat(h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop) {
		name, why := edits.Hook{Hook: hook}.Name(), ""
		switch {
		case slices.ContainsFunc(x.edits.Hooks, func(o edits.Hook) bool { return o.Path == hook.Path && slices.Equal(o.Args, hook.Args) }):
			why = x.edits.Why("hook", name)
		case hook.Path == x.config.HookCommand(): // the engine has added it
			why = "takes the lease when the container is created, and releases it after its end"
		}
		x.addInjection("hook", name, hook.Path, why)
	}
}

// explainRoot explains the files that berth has written into the root.
func (x *explainer) explainRoot(root *os.File) {
	if root == nil {
		return
	}
	if _, err := inroot.Kind(root, cdi.LoaderLine); err != nil {
		return
	}
	for _, r := range x.edits.Reasons {
		if r.Kind == "file" && !slices.ContainsFunc(x.found, func(i Injection) bool { return i.Name == r.Name }) {
			x.addInjection("file", r.Name, "", r.Why)
		}
	}
}

// explainRules names the device that each device rule allows.
func (x *explainer) explainRules(l *specs.Linux) {
	if l.Resources == nil {
		return
	}
	for _, r := range l.Resources.Devices {
		rule := edits.FromSpec(r)
		why := "belongs to no accelerator"
		if !rule.Allow {
			why = "default deny: only devices of the rules below can be opened"
		}
		for _, n := range x.edits.Nodes {
			if rule.Allow && n.Type == rule.Type && n.Major == rule.Major && n.Minor == rule.Minor {
				why = "node " + n.Path
			}
		}
		x.addInjection("rule", devices.Format(rule), "", why)
	}
}
