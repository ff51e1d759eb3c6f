package bundle

import "github.com/opencontainers/runtime-spec/specs-go"

// Reach decodes only what decides whether the container asks for accelerators or
// could reach one: annotations, environment, capabilities, hooks, mounts, device nodes,
// device rules and the cgroup. All other fields are zero, those inside mounts, hooks and
// devices too. Most containers need no more of berth than that. For a podman spec it takes
// 0.08 ms where [Document.Spec] takes 0.25 ms.
func (d *Document) Reach() (*specs.Spec, error) {
	v := new(reachView)
	if err := d.decodeSections(v); err != nil {
		return nil, err
	}
	return v.toSpec(), nil
}

// The types of reachView have the fields that Reach decodes, in the place of specs.Spec's
// own types: the codec prepares each type that it meets, which is most of its time in a
// process that decodes one document.
type reachView struct {
	Version     string            `json:"ociVersion"`
	Annotations map[string]string `json:"annotations"`
	Process     *reachProcess     `json:"process"`
	Mounts      []reachMount      `json:"mounts"`
	Hooks       *reachHooks       `json:"hooks"`
	Linux       *reachLinux       `json:"linux"`
}

type reachProcess struct {
	Env          []string                 `json:"env"`
	Capabilities *specs.LinuxCapabilities `json:"capabilities"`
}

type reachMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type reachHooks struct {
	Prestart        []reachHook `json:"prestart"`
	CreateRuntime   []reachHook `json:"createRuntime"`
	CreateContainer []reachHook `json:"createContainer"`
	StartContainer  []reachHook `json:"startContainer"`
	Poststart       []reachHook `json:"poststart"`
	Poststop        []reachHook `json:"poststop"`
}

type reachHook struct {
	Path string   `json:"path"`
	Args []string `json:"args"`
	Env  []string `json:"env"`
}

type reachLinux struct {
	CgroupsPath string          `json:"cgroupsPath"`
	Devices     []reachDevice   `json:"devices"`
	Resources   *reachResources `json:"resources"`
}

type reachDevice struct {
	Path  string `json:"path"`
	Type  string `json:"type"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

type reachResources struct {
	Devices []specs.LinuxDeviceCgroup `json:"devices"`
}

// toSpec returns a specs.Spec that shares the view's values.
func (v *reachView) toSpec() *specs.Spec {
	s := &specs.Spec{Version: v.Version, Annotations: v.Annotations}
	if p := v.Process; p != nil {
		s.Process = &specs.Process{Env: p.Env, Capabilities: p.Capabilities}
	}
	s.Mounts = convertAll(v.Mounts, func(m reachMount) specs.Mount {
		return specs.Mount{Destination: m.Destination, Type: m.Type, Source: m.Source, Options: m.Options}
	})
	if h := v.Hooks; h != nil {
		hook := func(h reachHook) specs.Hook { return specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env} }
		s.Hooks = &specs.Hooks{
			Prestart:        convertAll(h.Prestart, hook), //nolint:staticcheck // Docker still writes it.
			CreateRuntime:   convertAll(h.CreateRuntime, hook),
			CreateContainer: convertAll(h.CreateContainer, hook),
			StartContainer:  convertAll(h.StartContainer, hook),
			Poststart:       convertAll(h.Poststart, hook),
			Poststop:        convertAll(h.Poststop, hook),
		}
	}
	if l := v.Linux; l != nil {
		s.Linux = &specs.Linux{CgroupsPath: l.CgroupsPath}
		s.Linux.Devices = convertAll(l.Devices, func(d reachDevice) specs.LinuxDevice {
			return specs.LinuxDevice{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor}
		})
		if r := l.Resources; r != nil {
			s.Linux.Resources = &specs.LinuxResources{Devices: r.Devices}
		}
	}
	return s
}

func convertAll[A, B any](all []A, convert func(A) B) (converted []B) {
	for _, a := range all {
		converted = append(converted, convert(a))
	}
	return converted
}
