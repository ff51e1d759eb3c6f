package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// procDriver is where the drivers' own files are in procfs.
const procDriver = "/proc/driver"

// Limits of what is copied of the driver's files, which are short texts.
const (
	procFileLimit  = 64 << 10
	procTableLimit = 1 << 20
	procNames      = 64 // in one directory
)

// procTree is what a container sees of /proc/driver: the driver's version and
// parameters, and of the node's GPUs and MIG instances only the leased ones. Files
// are copied as they are now. The parameters say that nodes aren't to be made
// (ModifyDeviceFiles: 0), for the tools of NVIDIA would try.
func procTree(h gpu.Host, inv gpu.Inventory, leased []gpu.Device) (files map[string]string, dirs []string, err error) {
	p := procCopy{root: h.ProcPath("driver"), files: map[string]string{}, dirs: []string{"nvidia/gpus"}}
	p.copyFiles("nvidia/version", "nvidia/registry", "nvidia/params")
	if params, ok := p.files["nvidia/params"]; ok {
		p.files["nvidia/params"] = withoutNodes(params)
	}
	for _, d := range leased {
		g, s, ok := inv.Lookup(d.UUID)
		if !ok {
			return nil, nil, fmt.Errorf("device %s: the node doesn't have it any more", d.UUID)
		}
		p.copyDirectory(path.Join("nvidia/gpus", g.PCI))
		for _, name := range capabilityDirs(*g, s) {
			p.copyDirectory(path.Join("nvidia/capabilities", name))
		}
	}
	p.copyMIGMinors(inv, leased)
	return p.files, p.dirs, p.err
}

// capabilityDirs are the directories below /proc/driver/nvidia/capabilities that
// belong to a device: those of a slice, or all of a GPU.
func capabilityDirs(g gpu.GPU, s *gpu.Slice) []string {
	all := g.Slices
	dirs := []string{fmt.Sprintf("gpu%d/mig", g.Minor)}
	if s != nil {
		all = []gpu.Slice{*s}
	}
	for _, s := range all {
		dirs = append(dirs, driver.GI(g.Minor, s.GI), driver.CI(g.Minor, s.GI, s.CI))
	}
	return dirs
}

// procCopy copies files below root. The first error stays in err.
type procCopy struct {
	root  string
	files map[string]string
	dirs  []string
	err   error
}

func (p *procCopy) hasDirectory(dir string) bool { return isKind(path.Join(p.root, dir), unix.S_IFDIR) }

func (p *procCopy) isFile(name string) bool { return isKind(path.Join(p.root, name), unix.S_IFREG) }

// copyFiles takes files that are there. One that can't be read isn't for containers.
func (p *procCopy) copyFiles(names ...string) {
	for _, name := range names {
		data, err := smallfile.Read(path.Join(p.root, name), procFileLimit)
		switch {
		case err == nil:
			p.files[name] = string(data)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			p.err = errors.Join(p.err, err)
		}
	}
}

// copyDirectory takes a directory and the files right in it, if it is there.
func (p *procCopy) copyDirectory(dir string) {
	names, err := smallfile.Names(path.Join(p.root, dir))
	if err != nil || len(names) > procNames {
		p.err = errors.Join(p.err, err)
		return
	}
	if names == nil && !p.hasDirectory(dir) {
		return
	}
	p.dirs = append(p.dirs, dir)
	for _, name := range names {
		if !strings.HasPrefix(name, ".") && p.isFile(path.Join(dir, name)) {
			p.copyFiles(path.Join(dir, name))
		}
	}
}

// copyMIGMinors takes the lines of the table of MIG minors that belong to leased devices.
func (p *procCopy) copyMIGMinors(inv gpu.Inventory, leased []gpu.Device) {
	const name = "nvidia-caps/mig-minors"
	data, err := smallfile.Read(path.Join(p.root, name), procTableLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	wanted := map[string]bool{}
	for _, d := range leased {
		g, s, _ := inv.Lookup(d.UUID)
		for _, dir := range capabilityDirs(*g, s)[1:] {
			wanted[strings.Replace(dir, "/mig/", "/", 1)+"/access"] = true
		}
	}
	var table strings.Builder
	for line := range strings.Lines(string(data)) {
		if name, _, _ := strings.Cut(line, " "); wanted[name] {
			table.WriteString(line)
		}
	}
	p.files[name] = table.String()
}

// withoutNodes is the text of the driver's parameters, but that nodes aren't to be made.
func withoutNodes(params string) string {
	const key, line = "ModifyDeviceFiles:", "ModifyDeviceFiles: 0\n"
	lines := slices.Collect(strings.Lines(params))
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, key) })
	if i < 0 {
		return line + params
	}
	lines[i] = line
	return strings.Join(lines, "")
}
