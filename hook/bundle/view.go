package bundle

import (
	"reflect"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// view is the part of a specs.Spec that berth reads or changes. The fields of its struct
// types are the sections that a [Document] decodes; all else in a config.json is carried
// as it stands. A codec for the whole of specs.Spec would have to prepare hundreds of
// types with each start.
type view struct {
	Version     string            `json:"ociVersion"`
	Process     *viewProcess      `json:"process,omitempty"`
	Root        *specs.Root       `json:"root,omitempty"`
	Hostname    string            `json:"hostname,omitempty"`
	Mounts      []specs.Mount     `json:"mounts,omitempty"`
	Hooks       *specs.Hooks      `json:"hooks,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Linux       *viewLinux        `json:"linux,omitempty"`
}

type viewProcess struct {
	Terminal        bool                     `json:"terminal,omitempty"`
	User            specs.User               `json:"user"`
	Args            []string                 `json:"args,omitempty"`
	Env             []string                 `json:"env,omitempty"`
	Cwd             string                   `json:"cwd"`
	Capabilities    *specs.LinuxCapabilities `json:"capabilities,omitempty"`
	Rlimits         []specs.POSIXRlimit      `json:"rlimits,omitempty"`
	NoNewPrivileges bool                     `json:"noNewPrivileges,omitempty"`
}

type viewLinux struct {
	UIDMappings       []specs.LinuxIDMapping          `json:"uidMappings,omitempty"`
	GIDMappings       []specs.LinuxIDMapping          `json:"gidMappings,omitempty"`
	Resources         *viewResources                  `json:"resources,omitempty"`
	CgroupsPath       string                          `json:"cgroupsPath,omitempty"`
	Namespaces        []specs.LinuxNamespace          `json:"namespaces,omitempty"`
	Devices           []specs.LinuxDevice             `json:"devices,omitempty"`
	NetDevices        map[string]specs.LinuxNetDevice `json:"netDevices,omitempty"`
	RootfsPropagation string                          `json:"rootfsPropagation,omitempty"`
	MaskedPaths       []string                        `json:"maskedPaths,omitempty"`
	ReadonlyPaths     []string                        `json:"readonlyPaths,omitempty"`
	Seccomp           *viewSeccomp                    `json:"seccomp,omitempty"`
}

// viewSeccomp has of the filter's rules those for [edits.EditedCalls]. A
// filter names hundreds of calls, and no edit changes the others.
type viewSeccomp struct {
	DefaultAction specs.LinuxSeccompAction `json:"defaultAction"`
	Syscalls      []specs.LinuxSyscall     `json:"syscalls,omitempty"`
}

type viewResources struct {
	Devices []specs.LinuxDeviceCgroup `json:"devices,omitempty"`
	CPU     *specs.LinuxCPU           `json:"cpu,omitempty"`
}

// toSpec returns a specs.Spec that shares the view's values.
func (v *view) toSpec() *specs.Spec {
	s := &specs.Spec{Version: v.Version, Root: v.Root, Hostname: v.Hostname, Mounts: v.Mounts, Hooks: v.Hooks, Annotations: v.Annotations}
	if p := v.Process; p != nil {
		s.Process = &specs.Process{
			Terminal: p.Terminal, User: p.User, Args: p.Args, Env: p.Env, Cwd: p.Cwd,
			Capabilities: p.Capabilities, Rlimits: p.Rlimits, NoNewPrivileges: p.NoNewPrivileges,
		}
	}
	if l := v.Linux; l != nil {
		s.Linux = &specs.Linux{
			UIDMappings: l.UIDMappings, GIDMappings: l.GIDMappings, CgroupsPath: l.CgroupsPath, Namespaces: l.Namespaces,
			Devices: l.Devices, NetDevices: l.NetDevices, RootfsPropagation: l.RootfsPropagation, MaskedPaths: l.MaskedPaths, ReadonlyPaths: l.ReadonlyPaths,
		}
		if f := l.Seccomp; f != nil {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: f.DefaultAction, Syscalls: f.Syscalls}
		}
		if r := l.Resources; r != nil {
			s.Linux.Resources = &specs.LinuxResources{Devices: r.Devices, CPU: r.CPU}
		}
	}
	return s
}

// viewOf is the inverse of toSpec. ok is false if the spec has anything that a view
// cannot hold.
func viewOf(s *specs.Spec) (v *view, ok bool) {
	v = &view{Version: s.Version, Root: s.Root, Hostname: s.Hostname, Mounts: s.Mounts, Hooks: s.Hooks, Annotations: s.Annotations}
	if p := s.Process; p != nil {
		v.Process = &viewProcess{
			Terminal: p.Terminal, User: p.User, Args: p.Args, Env: p.Env, Cwd: p.Cwd,
			Capabilities: p.Capabilities, Rlimits: p.Rlimits, NoNewPrivileges: p.NoNewPrivileges,
		}
	}
	if l := s.Linux; l != nil {
		v.Linux = &viewLinux{
			UIDMappings: l.UIDMappings, GIDMappings: l.GIDMappings, CgroupsPath: l.CgroupsPath, Namespaces: l.Namespaces,
			Devices: l.Devices, NetDevices: l.NetDevices, RootfsPropagation: l.RootfsPropagation, MaskedPaths: l.MaskedPaths, ReadonlyPaths: l.ReadonlyPaths,
		}
		if f := l.Seccomp; f != nil {
			v.Linux.Seccomp = &viewSeccomp{DefaultAction: f.DefaultAction, Syscalls: f.Syscalls}
		}
		if r := l.Resources; r != nil {
			v.Linux.Resources = &viewResources{Devices: r.Devices, CPU: r.CPU}
		}
	}
	return v, reflect.DeepEqual(v.toSpec(), s)
}

// schema returns the JSON names of Go types. It remembers the types that it was asked
// for, which are few, so that searching them in order is faster than a map.
type schema struct{ known []known }

type known struct {
	of     reflect.Type
	fields fields
}

// fields are the JSON names of a struct type's fields, and their types.
type fields []field

type field struct {
	name string
	of   reflect.Type
}

func (s *schema) fieldsOf(t reflect.Type) fields {
	for _, k := range s.known {
		if k.of == t {
			return k.fields
		}
	}
	n := t.NumField()
	all := make(fields, 0, n)
	for i := range n {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			all = append(all, field{name, f.Type})
		}
	}
	s.known = append(s.known, known{t, all})
	return all
}

// indexOf returns the index of a name, -1 if there is none.
func (f fields) indexOf(name string) int {
	for i := range f {
		if f[i].name == name {
			return i
		}
	}
	return -1
}

// caseVariant returns the name from which key differs in case only, "" if there is none.
func (f fields) caseVariant(key string) string {
	for i := range f {
		if strings.EqualFold(f[i].name, key) {
			return f[i].name
		}
	}
	return ""
}

// sectionType returns the struct type whose fields are sections, if t is one of view's.
func sectionType(t reflect.Type) (reflect.Type, bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t, t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[view]().PkgPath()
}

// CommandLine returns the command of a container's init, with spaces between the words.
func CommandLine(spec *specs.Spec) string {
	if spec.Process == nil {
		return ""
	}
	return strings.Join(spec.Process.Args, " ")
}
