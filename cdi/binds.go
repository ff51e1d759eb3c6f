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

// Files says how the driver's files come into a container: the directory bound
// read-only at target, nvidia-smi also in /usr/bin, where people look for it, and
// each file that has a place of its own (firmware, what EGL, Vulkan and OpenCL read)
// there. The sources are those of common.
func Files(dir driver.Dir, target string, common shared.Dir) edits.Edits {
	source := common.PathForContainers(dir.Path)
	e := edits.Edits{Mounts: []specs.Mount{readOnlyBind(source, target)}}
	for _, name := range dir.Programs {
		if !isTyped(name) {
			continue // the others are in target's bin
		}
		e.Mounts = append(e.Mounts, readOnlyBind(path.Join(source, "bin", name), path.Join("/usr/bin", name)))
	}
	for _, f := range dir.Extras {
		e.Mounts = append(e.Mounts, bindView(common.PathForContainers(f.Source), f.Destination))
	}
	return e
}

// Programs says where the programs of the directory are in a container that
// [Files] was applied to, whichever target it has, and where each is on the host.
func Programs(dir driver.Dir) map[string]string {
	programs := make(map[string]string)
	for _, name := range dir.Programs {
		file := path.Join(dir.Path, "bin", name)
		programs[path.Join(Target, "bin", name)] = file
		programs[path.Join(OtherTarget, "bin", name)] = file
		if isTyped(name) {
			programs[path.Join("/usr/bin", name)] = file
		}
	}
	return programs
}

// isTyped says that people look for the program in /usr/bin.
func isTyped(name string) bool { return name == "nvidia-smi" }

func readOnlyBind(source, destination string) specs.Mount {
	return specs.Mount{
		Destination: destination, Type: "bind", Source: source,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "rprivate"},
	}
}

// placeFiles leaves out binds beside that of the driver directory that have no place in
// the container: where the user mounts something of his own, where no mount point can be made, and
// where the image has something odd. All of them are also found in the driver
// directory, or a container can do without. What they are bound over, or made next to, is judged again
// by the runtime, which resolves the path in the container; here it is about
// starting all the same.
func (p *preparation) placeFiles() {
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

// bindProblem says why a bind of a file can't be, "" if it can.
func (p *preparation) bindProblem(m specs.Mount) string {
	if p.isUserMount(m) {
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

// isUserMount says that a mount of the spec is at the destination, or that it would be
// made below one of the host's directories, and change that.
func (p *preparation) isUserMount(m specs.Mount) bool {
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

// found is what is at a path of the root.
type found struct {
	kind uint32
	err  error
}

// fileKind of what is at a path of the root. Not there is an error that Is
// fs.ErrNotExist; a link that leads nowhere is another. It looks once at each path.
func (p *preparation) fileKind(name string) (uint32, error) {
	if f, ok := p.kinds[name]; ok {
		return f.kind, f.err
	}
	var f found
	f.kind, f.err = inroot.Kind(p.root, name)
	if errors.Is(f.err, fs.ErrNotExist) && p.isDanglingLink(name) {
		f.err = unix.ELOOP
	}
	if p.kinds == nil {
		p.kinds = map[string]found{}
	}
	p.kinds[name] = f
	return f.kind, f.err
}

// isDanglingLink says that a path which leads nowhere is that of a link. Nothing is in a
// directory that isn't there.
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
