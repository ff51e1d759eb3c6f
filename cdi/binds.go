package cdi

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/internal/inroot"
)

// Target is where the driver directory appears in a container: CUDA images have
// its bin and lib64 in PATH and LD_LIBRARY_PATH.
const Target = "/usr/local/nvidia"

// OtherTarget is used where an image has files of its own in [Target].
const OtherTarget = "/usr/local/berth/nvidia"

// Files returns the bind mounts of the driver's files: the directory at target, read-only;
// nvidia-smi in /usr/bin as well; and each file that has to be at a fixed path (firmware,
// configuration of EGL, Vulkan and OpenCL). The sources lie in common.
func Files(dir driver.Dir, target string, common shared.Dir) edits.Edits {
	source := common.PathForContainers(dir.Path)
	e := edits.Edits{Mounts: []specs.Mount{readOnlyBind(source, target)}}
	for _, name := range dir.Programs {
		if !isInUsrBin(name) {
			continue // other programs are found in target's bin
		}
		e.Mounts = append(e.Mounts, readOnlyBind(path.Join(source, "bin", name), path.Join("/usr/bin", name)))
	}
	for _, f := range dir.Extras {
		e.Mounts = append(e.Mounts, bindView(common.PathForContainers(f.Source), f.Destination))
	}
	return e
}

// Programs returns the paths of the directory's programs in a container to which [Files] was
// applied, whichever target it has, and the path of each on the host.
func Programs(dir driver.Dir) map[string]string {
	programs := make(map[string]string)
	for _, name := range dir.Programs {
		file := path.Join(dir.Path, "bin", name)
		programs[path.Join(Target, "bin", name)] = file
		programs[path.Join(OtherTarget, "bin", name)] = file
		if isInUsrBin(name) {
			programs[path.Join("/usr/bin", name)] = file
		}
	}
	return programs
}

// isInUsrBin reports whether the program is also bound in /usr/bin, because users call it by name.
func isInUsrBin(name string) bool { return name == "nvidia-smi" }

func readOnlyBind(source, destination string) specs.Mount {
	return specs.Mount{
		Destination: destination, Type: "bind", Source: source,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "rprivate"},
	}
}

// dropBlockedBinds removes binds that would make the container fail to start, except that of the
// driver directory: the user mounts something else there, the mount point can't be created, or the
// image has a file of another type there. The container works without them, because the driver
// directory has the files too, or they are optional. This is no security check: the runtime resolves
// the destinations again inside the container.
func (p *preparation) dropBlockedBinds() {
	p.Edits.Mounts = slices.DeleteFunc(p.Edits.Mounts, func(m specs.Mount) bool {
		switch {
		case m.Destination == p.Target:
			return false
		case strings.HasPrefix(m.Destination, "/proc/"):
			return !p.mountsAt("/proc")
		}
		why := p.bindProblem(m)
		switch {
		case why == "":
			return false
		case slices.Contains(p.dir.Programs, path.Base(m.Destination)):
			why += ": use " + path.Join(p.Target, "bin", path.Base(m.Destination))
		}
		p.addNote("%s is left out: %s", m.Destination, why)
		return true
	})
}

// bindProblem returns why a file can't be bound at its destination, "" if it can.
func (p *preparation) bindProblem(m specs.Mount) string {
	if p.conflictsWithMount(m) {
		return "a mount is in its place"
	}
	directory := m.Destination == ByPath || m.Destination == udevState
	switch kind, err := p.fileKind(m.Destination); {
	case err == nil && directory && kind != unix.S_IFDIR:
		return "the image has something there that is no directory"
	case err == nil && !directory && kind != unix.S_IFREG:
		return "the image has something there that is no file"
	case err == nil:
		return ""
	case !errors.Is(err, fs.ErrNotExist):
		return "the image's path leads nowhere"
	case !p.writable && !p.onTmpfs(m.Destination):
		return "it can't be made in a root that is read-only"
	}
	for dir := path.Dir(m.Destination); dir != "/"; dir = path.Dir(dir) {
		kind, err := p.fileKind(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || kind != unix.S_IFDIR {
			return dir + " of the image is no directory"
		}
		break
	}
	return ""
}

// conflictsWithMount reports whether a mount of the spec is at the destination of m, or above it:
// the mount point would then be created in a directory of the host. A tmpfs above it is no conflict.
func (p *preparation) conflictsWithMount(m specs.Mount) bool {
	return slices.ContainsFunc(p.spec.Mounts, func(o specs.Mount) bool {
		d := path.Clean(o.Destination)
		below := d != "/" && strings.HasPrefix(m.Destination, d+"/") && o.Type != "tmpfs"
		return below || d == m.Destination && o.Source != m.Source
	})
}

func (p *preparation) onTmpfs(dest string) bool {
	return slices.ContainsFunc(p.spec.Mounts, func(o specs.Mount) bool {
		return o.Type == "tmpfs" && strings.HasPrefix(dest, path.Clean(o.Destination)+"/")
	})
}

// pathKind is the cached result of fileKind.
type pathKind struct {
	kind uint32
	err  error
}

// fileKind returns the file type at a path of the root. The error Is fs.ErrNotExist if nothing is
// there, and unix.ELOOP for a dangling link. Results are cached.
func (p *preparation) fileKind(name string) (uint32, error) {
	if f, ok := p.kinds[name]; ok {
		return f.kind, f.err
	}
	var f pathKind
	f.kind, f.err = inroot.Kind(p.root, name)
	if errors.Is(f.err, fs.ErrNotExist) && p.isDanglingLink(name) {
		f.err = unix.ELOOP
	}
	if p.kinds == nil {
		p.kinds = map[string]pathKind{}
	}
	p.kinds[name] = f
	return f.kind, f.err
}

// isDanglingLink reports whether a path that can't be resolved is a symbolic link.
func (p *preparation) isDanglingLink(name string) bool {
	if _, err := p.fileKind(path.Dir(name)); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	link, err := inroot.Open(p.root, name, unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	return link.Close() == nil // an O_PATH descriptor
}
