package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// apply changes the node's trees from the state was to the present state.
func (n Node) apply(was Node) error {
	p := n.Blueprint()
	if err := n.renameDriver(was.Driver); err != nil {
		return err
	}
	return errors.Join(n.renewData(was), n.writeProcDriver(p), n.writeLists(p), n.renewModules(was, p),
		renewNodes(was.devices(p), n.devices(p)), n.renewConfigs(p), n.renewNVML())
}

// renewConfigs writes the PCI configuration spaces of GPUs by the state.
func (n Node) renewConfigs(p Profile) error {
	files := map[string]string{}
	for i, g := range p.GPUs {
		files[filepath.Join("/sys/bus/pci/devices", PCI(g.Path), "config")] = n.gpuConfig(i)
	}
	return writeAll(files)
}

// renewModules writes /sys/module by the state.
func (n Node) renewModules(was Node, p Profile) error {
	t := tree{files: map[string]string{}, links: map[string]string{}}
	for _, m := range n.modules(p) {
		n.module(t, m)
	}
	files := map[string]string{}
	for path, content := range t.files {
		files[filepath.Join("/sys", path)] = content
	}
	if err := writeAll(files); err != nil {
		return err
	}
	for _, m := range was.modules(p) {
		if slices.Contains(n.modules(p), m) {
			continue
		}
		if err := os.RemoveAll(filepath.Join("/sys/module", m)); err != nil {
			return fmt.Errorf("remove module: %w", err)
		}
	}
	return nil
}

// renewNodes removes nodes that no longer belong and makes those that are missing.
func renewNodes(was, now []device) error {
	for _, d := range was {
		if slices.Contains(now, d) {
			continue
		}
		if err := os.Remove(filepath.Join("/dev", d.path)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove node: %w", err)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(now), func(d device) bool {
		var st unix.Stat_t
		return unix.Stat(filepath.Join("/dev", d.path), &st) == nil
	})
	return makeNodes("/dev", missing)
}

// renameDriver renames the driver's libraries to those of the version.
func (n Node) renameDriver(was string) error {
	if was == n.Driver {
		return nil
	}
	dirs := []string{n.Libraries, filepath.Join(n.Libraries, "vdpau")}
	if n.Libraries32 != "" {
		dirs = append(dirs, n.Libraries32, filepath.Join(n.Libraries32, "vdpau"))
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list driver: %w", err)
		}
		for _, e := range entries {
			if err := renameVersion(filepath.Join(dir, e.Name()), was, n.Driver); err != nil {
				return err
			}
		}
	}
	return nil
}

// renameVersion renames a library of the old version, or turns a link to one.
func renameVersion(path, was, now string) error {
	if to, err := os.Readlink(path); err == nil {
		if base, old := strings.CutSuffix(to, ".so."+was); old {
			return relink(path, base+".so."+now)
		}
		return nil
	}
	base, old := strings.CutSuffix(path, ".so."+was)
	if !old {
		return nil
	}
	if err := os.Rename(path, base+".so."+now); err != nil {
		return fmt.Errorf("rename library: %w", err)
	}
	return nil
}
