package devicerules

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// mkNode is the bit of CAP_MKNOD in a capability set.
const mkNode = 1 << 27

// plainSpec is a container without any accelerator in its spec.
func (w *world) plainSpec(t *testing.T) *specs.Spec {
	capabilities := []string{"CAP_DAC_OVERRIDE", "CAP_MKNOD"}
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: w.root(t)},
		Process: &specs.Process{
			Cwd: "/", Args: []string{"/probe"}, Env: []string{"PATH=/"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Permitted: capabilities, Effective: capabilities,
				Inheritable: capabilities, Ambient: capabilities,
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "network"}},
			Resources:  &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// requesting adds a request as an engine's --annotation does.
func requesting(s *specs.Spec, request string) *specs.Spec {
	s.Annotations = map[string]string{"berth.gpus": request}
	return s
}

// withDev binds the host's /dev.
func withDev(s *specs.Spec) *specs.Spec {
	s.Mounts = append(s.Mounts, bind("/dev", "/host/dev"))
	return s
}

func bind(source, destination string) specs.Mount {
	return specs.Mount{Destination: destination, Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}}
}

// listedSpec returns a spec that names every accelerator in every way: as a node, by rules for single
// nodes and for whole majors, and as a bind.
func (w *world) listedSpec(t *testing.T) *specs.Spec {
	s := withDev(w.plainSpec(t))
	majors := map[int64]bool{}
	allow := func(major int64, minor *int64) {
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: minor, Access: "rwm"})
	}
	for _, d := range w.devices {
		major, minor := int64(d.major), int64(d.minor)
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: d.path, Type: "c", Major: major, Minor: minor})
		s.Mounts = append(s.Mounts, bind(d.path, "/stolen"+d.path))
		allow(major, &minor)
		if !majors[major] {
			allow(major, nil)
		}
		majors[major] = true
	}
	fuse := int64(229)
	allow(10, &fuse)
	return s
}

// disguisedSpec adds other names of nvidia-modeset, which is never leased: a link to its node, and a
// node of the same number elsewhere.
func (w *world) disguisedSpec(t *testing.T, s *specs.Spec) *specs.Spec {
	dir := t.TempDir()
	link, node := filepath.Join(dir, "link"), filepath.Join(dir, "innocent")
	rig.Must(t, os.Symlink("/dev/nvidia-modeset", link))
	mknod(t, node, device{major: 195, minor: 254})
	s.Mounts = append(s.Mounts, bind(link, "/stolen/link"), bind(node, "/stolen/innocent"))
	s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/innocent", Type: "u", Major: 195, Minor: 254})
	return s
}

// privileged allows all devices, as --privileged does.
func privileged(s *specs.Spec) *specs.Spec {
	s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	return s
}
