package berth

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Injection is one thing that a container has because of its lease.
type Injection struct {
	// Kind is "device", "directory", "library", "program", "firmware", "file", "socket",
	// "variable", "annotation", "rule", "hook", "network", "limit", "mask" or "group".
	Kind string `json:"kind"`
	// Name is the path in the container, or what a variable, rule or hook is called.
	Name string `json:"name"`
	// Source is what it is on the host: a path, or a device's numbers.
	Source string `json:"source,omitempty"`
	// Why says which device, driver capability, feature or policy asked for it.
	Why string `json:"why"`
}

// Explain says what of a container's spec is there because of the lease, and why, thing
// by thing. The spec is as the container was made of; one that berth has not prepared,
// because a hook has done to the container what the spec doesn't say, becomes what it
// would be now. root is the container's root, where it is looked for what
// was written into it; it may be nil.
//
// It runs no part of what prepares containers a second time but asks the same
// functions for less and compares. It writes nothing.
func (n *Node) Explain(ctx context.Context, spec *specs.Spec, lease ledger.Lease, root *os.File) ([]Injection, error) {
	x, err := n.newExplainer(ctx, spec, lease)
	if err != nil {
		return nil, fmt.Errorf("explain lease %s: %w", lease.ID, err)
	}
	if spec.Annotations[LeaseAnnotation] != lease.ID {
		if err := x.prepareSpec(ctx, spec, lease); err != nil {
			return nil, fmt.Errorf("explain lease %s: %w", lease.ID, err)
		}
	}
	return x.explainSpec(spec, root), nil
}

// explainer knows what each thing is there for.
type explainer struct {
	n       *Node
	plan    Plan
	chosen  string // how the capabilities were chosen
	home    string // of the driver's files
	nodes   map[string]string
	mounts  map[string]string
	files   cdi.Reasons
	foreign []fromCDI
	nics    edits.Edits // what the leased RDMA adapters bring
	limits  []specs.POSIXRlimit
	all     []Injection
}

// fromCDI is what one device of another vendor brings.
type fromCDI struct {
	name string
	edits.Edits
}

func (n *Node) newExplainer(ctx context.Context, spec *specs.Spec, lease ledger.Lease) (*explainer, error) {
	x := &explainer{n: n, nodes: map[string]string{}, mounts: map[string]string{}}
	var err error
	if x.plan.Majors, err = gpu.ReadMajors(n.config.GPUHost()); err != nil {
		return nil, err
	}
	gpus, nics, named := splitDevices(lease.Devices)
	if len(gpus) > 0 {
		if err := x.ofGPUs(ctx, spec, lease.Request, gpus, nics); err != nil {
			return nil, err
		}
	}
	if len(nics) > 0 {
		if err := x.ofNICs(ctx, spec, lease.ID, nics); err != nil {
			return nil, err
		}
	}
	if len(named) > 0 {
		err = x.ofCDI(ctx, named)
	}
	return x, err
}

func (x *explainer) ofGPUs(ctx context.Context, spec *specs.Spec, request string, gpus, nics []gpu.Device) error {
	var env []string
	if spec.Process != nil {
		env = spec.Process.Env
	}
	var err error
	if x.plan.Wish, err = x.n.readWish(env, request); err != nil {
		return err
	}
	x.chosen = describeCapabilities(env, x.plan.Wish.Capabilities)
	s, err := x.n.loadSnapshot(ctx)
	if err != nil {
		return err
	}
	x.plan.Inventory, x.plan.Accelerators, x.home = s.Inventory, s.Key.Majors, s.DriverDir
	x.plan.Wish.Features = x.n.config.Policy.addCompanions(s.Inventory, x.plan.Wish.Features, nics)
	nodes, err := cdi.WhyNodes(s.Inventory, gpus, s.Key.Majors, x.plan.Wish)
	if err != nil {
		return err
	}
	services, err := cdi.WhyServices(x.n.config.GPUHost(), x.plan.Wish)
	if err != nil {
		return err
	}
	x.addReasons(x.nodes, nodes)
	x.addReasons(x.mounts, services)
	x.mounts[cdi.NCCLConf], x.mounts[cdi.NCCLTopology] = "policy.nccl_conf", "policy.nccl_topology"
	x.addReasons(x.mounts, cdi.WhyViews(gpus, x.plan.Wish))
	return nil
}

func (x *explainer) addReasons(where map[string]string, what cdi.Reasons) {
	for name, why := range what {
		where[name] = why.String()
	}
}

// describeCapabilities says who chose the driver's capabilities.
func describeCapabilities(env []string, caps gpu.Capabilities) string {
	value := lookupVariable(env, "NVIDIA_DRIVER_CAPABILITIES")
	if strings.TrimSpace(value) == "" {
		return fmt.Sprintf("driver capabilities %s, as nothing else is asked for", caps)
	}
	return fmt.Sprintf("driver capabilities %s, of NVIDIA_DRIVER_CAPABILITIES=%s within policy", caps, value)
}

func (x *explainer) ofCDI(ctx context.Context, names []string) error {
	r, err := x.n.CDI(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		e, err := resolveCDI(r, []string{name}, x.plan.Majors)
		if err != nil {
			return err
		}
		x.foreign = append(x.foreign, fromCDI{name, e})
	}
	return nil
}

// prepareSpec puts into the spec what the lease brings, but for what is written into the
// root.
func (x *explainer) prepareSpec(ctx context.Context, spec *specs.Spec, lease ledger.Lease) error {
	parts := make([]edits.Edits, 0, len(x.foreign)+5)
	parts = append(parts, x.nics)
	for _, f := range x.foreign {
		parts = append(parts, f.Edits)
	}
	if gpus, _, _ := splitDevices(lease.Devices); len(gpus) > 0 {
		s, dir, err := x.n.loadDriver(ctx, x.plan.Wish.Capabilities)
		if err != nil {
			return err
		}
		views, err := x.n.newViews(s.Taken).Edits(s.Inventory, gpus, x.plan.Wish)
		if err != nil {
			return err
		}
		proc, err := cdi.ProcEdits(x.n.config.GPUHost(), s.Inventory, gpus, x.plan.Wish)
		if err != nil {
			return err
		}
		services, err := cdi.Services(x.n.config.GPUHost(), x.plan.Wish)
		if err != nil {
			return err
		}
		common := x.n.config.SharedFiles()
		if !common.IsMounted() {
			common.Mount = ""
		}
		parts = append(parts, views, proc, services, x.n.limitEdits(), x.nameNCCLFiles(), cdi.Files(dir, cdi.Target, common))
	}
	var err error
	if x.plan.Files, err = edits.Merge(parts...); err != nil {
		return err
	}
	all, _, err := Compose(spec, &lease, x.plan)
	if err != nil {
		return err
	}
	return all.Apply(spec)
}

// nameNCCLFiles binds the admin's files for NCCL themselves, of which containers get copies.
func (x *explainer) nameNCCLFiles() (e edits.Edits) {
	p := x.n.config.Policy
	for _, f := range [][2]string{{p.NCCLConf, cdi.NCCLConf}, {p.NCCLTopology, cdi.NCCLTopology}} {
		if f[0] != "" {
			e.Mounts = append(e.Mounts, specs.Mount{Destination: f[1], Type: "bind", Source: f[0], Options: []string{"bind", "ro"}})
		}
	}
	return e
}

func (x *explainer) addInjection(kind, name, source, why string) {
	x.all = append(x.all, Injection{Kind: kind, Name: name, Source: source, Why: why})
}

// explainSpec goes through a prepared spec.
func (x *explainer) explainSpec(spec *specs.Spec, root *os.File) []Injection {
	if spec.Linux != nil {
		x.explainNodes(spec.Linux.Devices)
	}
	for _, m := range spec.Mounts {
		x.explainMount(m)
	}
	if spec.Process != nil {
		x.explainProcess(spec.Process)
	}
	for _, key := range []string{LeaseAnnotation} {
		if value, ok := spec.Annotations[key]; ok {
			x.addInjection("annotation", key+"="+value, "", "names the lease")
		}
	}
	x.explainHooks(spec.Hooks)
	x.explainRoot(root)
	if spec.Linux != nil && slices.Contains(spec.Linux.ReadonlyPaths, cdi.ProcDriver) {
		x.addInjection("mask", cdi.ProcDriver, "", "is read-only, and what is of other devices is masked")
	}
	if spec.Linux != nil && spec.Linux.Resources != nil {
		x.explainRules(spec.Linux)
	}
	return x.all
}

func (x *explainer) explainNodes(devices []specs.LinuxDevice) {
	for _, d := range devices {
		why := x.nodes[path.Clean(d.Path)]
		for _, f := range x.foreign {
			if slices.ContainsFunc(f.Nodes, func(n edits.Node) bool { return n.Path == d.Path }) {
				why = "CDI device " + f.name
			}
		}
		if why != "" {
			x.addInjection("device", d.Path, fmt.Sprintf("%s %d:%d", d.Type, d.Major, d.Minor), why)
		}
	}
}

func (x *explainer) explainMount(m specs.Mount) {
	cache, _ := cdi.LoaderFiles()
	for _, f := range x.foreign {
		if slices.ContainsFunc(f.Mounts, func(o specs.Mount) bool { return o.Destination == m.Destination && o.Source == m.Source }) {
			x.addInjection("directory", m.Destination, m.Source, "CDI device "+f.name)
			return
		}
	}
	switch why, known := x.mounts[m.Destination]; {
	case known:
		x.addInjection(kindOf(m), m.Destination, m.Source, why)
	case m.Destination == cache && x.isShared(m.Source):
		x.addInjection("file", cache, m.Source, "the loader finds the driver's libraries by it; the root can't be written to")
	case x.isShared(m.Source):
		x.explainDriver(m)
	}
}

func kindOf(m specs.Mount) string {
	switch fi, err := os.Lstat(m.Source); {
	case err == nil && fi.Mode().IsRegular():
		return "file"
	case err == nil && fi.Mode()&os.ModeSocket != 0:
		return "socket"
	}
	return "directory"
}

// isShared says that a path is that of a file which containers share.
func (x *explainer) isShared(source string) bool {
	d := x.n.config.SharedFiles()
	return strings.HasPrefix(source, d.Source+"/") || strings.HasPrefix(source, d.Mount+"/")
}

// explainDriver names what the bind of driver files brings, file by file.
func (x *explainer) explainDriver(m specs.Mount) {
	if path.Base(m.Source) == "files" {
		x.explainView(m)
		return
	}
	files := x.fileReasons(x.home)
	kind, why := "file", files[m.Destination].String()
	if strings.Contains(m.Destination, "/firmware/") {
		kind, why = "firmware", "the GPUs' own processors load it; "+why
	}
	if dir, name := path.Split(m.Source); path.Base(path.Clean(dir)) == "bin" {
		kind, why = "program", files[path.Join("bin", name)].String()+", where people look for it"
	}
	x.addInjection(kind, m.Destination, m.Source, why)
}

// explainView lists the directory that is bound as the driver's.
func (x *explainer) explainView(m specs.Mount) {
	home := path.Dir(path.Dir(m.Source))
	if d := x.n.config.SharedFiles(); strings.HasPrefix(home, d.Mount+"/") {
		home = d.Source + strings.TrimPrefix(home, d.Mount) // which needs no mount
	}
	x.addInjection("directory", m.Destination, m.Source, x.chosen)
	files := x.fileReasons(home)
	var names []string
	for name := range files {
		if !path.IsAbs(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		kind := "library"
		if strings.HasPrefix(name, "bin/") {
			kind = "program"
		}
		x.addInjection(kind, path.Join(m.Destination, name), path.Join(m.Source, name), files[name].String())
	}
}

// fileReasons of the driver's files. Of a directory that was taken out of use meanwhile
// nothing is known.
func (x *explainer) fileReasons(home string) cdi.Reasons {
	if x.files == nil {
		x.files, _ = cdi.WhyFiles(home, x.plan.Wish.Capabilities)
	}
	return x.files
}

func (x *explainer) explainProcess(p *specs.Process) {
	known := map[string]string{
		"BERTH_LEASE":            "names the lease to programs inside",
		"BERTH_DEVICES":          "lists the leased devices to programs inside",
		"CUDA_DEVICE_ORDER":      "has CUDA number GPUs as the PCI bus and nvidia-smi do",
		"NVIDIA_VISIBLE_DEVICES": "keeps NVIDIA's own tools from adding devices",
		cdi.HCAVariable:          "names the leased RDMA devices to NCCL",
	}
	for _, entry := range p.Env {
		name, value, _ := strings.Cut(entry, "=")
		why := known[name]
		switch {
		case name == "NVIDIA_VISIBLE_DEVICES" && value != "void", name == cdi.HCAVariable && value != x.nics.Env[name]:
			why = ""
		case name == "LD_LIBRARY_PATH" && strings.Contains(value, "nvidia/lib"):
			why = "the driver's libraries are found by it where the loader's cache is out of reach"
		}
		for _, f := range x.foreign {
			if set, ok := f.Env[name]; ok && set == value {
				why = "CDI device " + f.name
			}
		}
		if why != "" {
			x.addInjection("variable", entry, "", why)
		}
	}
	x.explainLimits(p.Rlimits)
	for _, f := range x.foreign {
		for _, gid := range f.GIDs {
			x.addInjection("group", fmt.Sprint(gid), "", "CDI device "+f.name)
		}
	}
}

func (x *explainer) explainHooks(h *specs.Hooks) {
	if h == nil {
		return
	}
	for _, list := range [][]specs.Hook{h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} {
		for _, hook := range list {
			call := strings.Join(hook.Args, " ")
			for _, f := range x.foreign {
				if slices.ContainsFunc(f.Hooks, func(o edits.Hook) bool { return o.Path == hook.Path && slices.Equal(o.Args, hook.Args) }) {
					x.addInjection("hook", call, hook.Path, "CDI device "+f.name)
				}
			}
			if hook.Path == x.n.config.HookCommand() {
				x.explainHook(hook, cmp.Or(call, hook.Path))
			}
		}
	}
	for _, f := range x.foreign {
		for host, inside := range f.NetDevices {
			x.addInjection("network", cmp.Or(inside, host), host, "CDI device "+f.name)
		}
	}
}

// explainHook names what a hook of berth's brings into a container that a spec can't.
func (x *explainer) explainHook(hook specs.Hook, call string) {
	why := "leases when the container is made, and gives back when it has ended"
	switch {
	case slices.Contains(hook.Args, "rdma"):
		why = "moves RDMA devices into the container's network"
	case slices.Contains(hook.Args, "netdev"):
		why = "moves network devices into the container"
	}
	x.addInjection("hook", call, hook.Path, why)
}

// explainRoot finds what was written into the root.
func (x *explainer) explainRoot(root *os.File) {
	if root == nil {
		return
	}
	cache, line := cdi.LoaderFiles()
	if _, err := inroot.Kind(root, line); err != nil {
		return
	}
	x.addInjection("file", line, "", "a later ldconfig in the container finds the driver's libraries by it")
	if !slices.ContainsFunc(x.all, func(i Injection) bool { return i.Name == cache }) {
		x.addInjection("file", cache, "", "the loader finds the driver's libraries by it; the image's own entries are kept")
	}
}

// explainRules says of each allowance whose it is.
func (x *explainer) explainRules(l *specs.Linux) {
	for _, r := range l.Resources.Devices {
		rule := edits.FromSpec(r)
		if !rule.Allow {
			x.addInjection("rule", ruleText(rule), "", "default deny: what no rule below allows can't be opened")
			continue
		}
		why := "belongs to no accelerator"
		for _, d := range l.Devices {
			if d.Type == rule.Type && d.Major == rule.Major && d.Minor == rule.Minor && x.nodes[d.Path] != "" {
				why = "node " + d.Path
			}
		}
		x.addInjection("rule", ruleText(rule), "", why)
	}
}

func ruleText(r edits.Rule) string {
	number := func(n int64) string {
		if n == edits.Any {
			return "*"
		}
		return fmt.Sprint(n)
	}
	verb := "deny"
	if r.Allow {
		verb = "allow"
	}
	return fmt.Sprintf("%s %s %s:%s %s", verb, cmp.Or(r.Type, "a"), number(r.Major), number(r.Minor), r.Access)
}

// ofNICs finds out what the leased RDMA adapters bring.
func (x *explainer) ofNICs(ctx context.Context, spec *specs.Spec, lease string, nics []gpu.Device) error {
	s, err := x.n.loadSnapshot(ctx)
	if err != nil {
		return err
	}
	x.plan.Inventory, x.plan.Accelerators = s.Inventory, s.Key.Majors
	if x.nics, _, err = x.n.grantedNICEdits(spec, s.Inventory, nics, lease); err != nil {
		return err
	}
	why := func(of ...gpu.Device) string {
		return "RDMA device " + strings.TrimPrefix(cdi.HCANames(s.Inventory, of), "=")
	}
	for i, n := range x.nics.Nodes { // each device's, and one for all
		if x.nodes[n.Path] = why(nics...); i < len(nics) {
			x.nodes[n.Path] = why(nics[i])
		}
	}
	for _, m := range x.nics.Mounts {
		x.mounts[m.Destination] = why(nics...) + ": what /sys shows of such devices"
	}
	own, err := x.n.processLimits()
	if err != nil {
		return err
	}
	limits, _ := cdi.RDMALimits(nil, own)
	x.limits = limits.Rlimits
	return nil
}

// explainLimits names those that a leased adapter raises.
func (x *explainer) explainLimits(limits []specs.POSIXRlimit) {
	for _, l := range limits {
		if slices.Contains(x.limits, l) {
			x.addInjection("limit", l.Type, "", "RDMA and NCCL need more than engines give")
		}
	}
}
