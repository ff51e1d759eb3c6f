// Package spec builds the OCI spec of a container from settings, image and host: users, environment,
// mounts, limits, capabilities, device rules and the system call filter (package seccomp).
//
// The steps are [Settings.Check] and [PlanMounts] before anything is created, [Settings.Container],
// which merges settings and image, and [New], which is pure.
//
// The defaults are docker's, with these differences: CAP_MKNOD is missing, no_new_privileges is
// set, /dev/shm has the kernel's default size (half of memory) instead of 64 MiB, and NUMA
// memory policy may be set. NCCL needs the latter two. The devices of a lease aren't known here:
// the launcher adds them to the spec.
//
// Specs are of version 1.0.2, so that old runtimes accept them.
package spec

import (
	"fmt"
	"maps"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec/seccomp"
)

// Container is the input of [New].
type Container struct {
	Args     []string
	Env      []string // "K=V"; the last of a name counts
	Dir      string
	User     rootfs.User
	Terminal bool
	Console  *specs.Box // size of the terminal at the start, nil if unknown
	Hostname string
	Root     string // absolute path of the root file system
	ReadOnly bool   // the container can't write to its root
	Cgroup   string // absolute cgroup path
	// HostNetwork shares the host's network; otherwise there is a loopback device.
	HostNetwork bool
	// CgroupNamespace hides the host's cgroups; v2 only.
	CgroupNamespace bool
	// HostIPC and HostUTS share these with the host.
	HostIPC, HostUTS bool
	// Join has the paths of existing namespaces to join; other namespaces are created.
	Join map[specs.LinuxNamespaceType]string
	// Shm is a directory of the host that becomes /dev/shm; "" means a tmpfs of the container's own.
	Shm string
	// Files are the container's own files by destination, which are bind-mounted.
	Files map[string]string
	// Mounts are the user's.
	Mounts    []specs.Mount
	Resources Resources
	Host      Host
	// Capabilities of the container's root.
	Capabilities Capabilities
	Filter       *seccomp.Filter
	// NewPrivileges lets programs gain privileges, as by set-uid.
	NewPrivileges bool
	// AppArmor is a profile's name, "" for none.
	AppArmor string
	// MaskedPaths are hidden in addition to the default ones.
	MaskedPaths []string
	// Exposed masks no paths, and mounts the kernel's file systems writable.
	Exposed     bool
	Annotations map[string]string
	Sysctls     map[string]string // kernel parameters
}

// New returns the spec of a container. It reads nothing from the host.
func New(c Container) *specs.Spec {
	spec := &specs.Spec{
		Version:     "1.0.2",
		Hostname:    c.Hostname,
		Annotations: mergeAnnotations(c),
		Root:        &specs.Root{Path: c.Root, Readonly: c.ReadOnly},
		Process: &specs.Process{
			Terminal:        c.Terminal,
			ConsoleSize:     c.Console,
			User:            specs.User{UID: c.User.UID, GID: c.User.GID, AdditionalGids: c.User.Groups},
			Args:            c.Args,
			Env:             buildEnvironment(c),
			Cwd:             c.Dir,
			Capabilities:    linuxCapabilities(c.User, c.Capabilities.Names),
			Rlimits:         applyUlimits(defaultRlimits(c.Host), c.Resources.Ulimits),
			NoNewPrivileges: !c.NewPrivileges,
			ApparmorProfile: c.AppArmor,
			OOMScoreAdj:     c.Resources.OOMScoreAdj,
		},
		Mounts: linuxMounts(c),
		Linux: &specs.Linux{
			Namespaces:        linuxNamespaces(c),
			CgroupsPath:       c.Cgroup,
			Resources:         linuxResources(c.Resources),
			RootfsPropagation: "private",
			MaskedPaths:       append(maskedPaths(), c.MaskedPaths...),
			ReadonlyPaths:     []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			Sysctl:            c.Sysctls,
			Seccomp:           c.Filter.Calls,
		},
	}
	if c.Exposed {
		spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths = nil, nil
	}
	if c.HostUTS {
		spec.Hostname = "" // runtimes would set the host's hostname
	}
	return spec
}

// mergeAnnotations returns the container's annotations and those of the filter, which win.
func mergeAnnotations(c Container) map[string]string {
	if len(c.Annotations) == 0 {
		return maps.Clone(c.Filter.Annotations)
	}
	all := maps.Clone(c.Annotations)
	maps.Copy(all, c.Filter.Annotations)
	return all
}

func linuxNamespaces(c Container) []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
	if !c.HostIPC {
		all = append(all, specs.LinuxNamespace{Type: specs.IPCNamespace})
	}
	if !c.HostUTS {
		all = append(all, specs.LinuxNamespace{Type: specs.UTSNamespace})
	}
	all = append(all, specs.LinuxNamespace{Type: specs.MountNamespace})
	if !c.HostNetwork {
		all = append(all, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	if c.CgroupNamespace {
		all = append(all, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	for i := range all {
		all[i].Path = c.Join[all[i].Type]
	}
	return all
}

// Encode returns a bundle's config.json.
func Encode(s *specs.Spec) ([]byte, error) {
	data, err := new(json.Codec).Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	return data, nil
}
