package setup

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

const (
	containerdConfigPath = "/etc/containerd/config.toml"
	containerdUnit       = "containerd.service"
)

// criPlugin returns the path of the CRI plugin's table in a configuration of version 2 or
// 3.
func criPlugin(version int) []string {
	if version == 2 {
		return []string{"plugins", "io.containerd.grpc.v1.cri"}
	}
	return []string{"plugins", "io.containerd.cri.v1.runtime"}
}

// findCRI returns the CRI plugin's table of a configuration of any version.
func findCRI(values map[string]any) map[string]any {
	for _, version := range []int{3, 2} {
		if t := innerTable(values, criPlugin(version)...); t != nil {
			return t
		}
	}
	return nil
}

// ContainerdDumpCommand returns the call that makes containerd print its whole
// configuration, nil if there is no containerd.
func (h Host) ContainerdDumpCommand() []string {
	containerd := h.findProgram("containerd")
	switch main := h.containerdMain(); {
	case containerd == "":
		return nil
	case h.exists(main):
		return []string{containerd, "--config", main, "config", "dump"}
	}
	return []string{containerd, "config", "default"}
}

// containerdMain returns the file that containerd is started with.
func (h Host) containerdMain() string {
	if file, ok := h.readUnit(containerdUnit).findFlag("--config", "-c"); ok {
		return file
	}
	return containerdConfigPath
}

// containerdFile is a file that containerd loads.
type containerdFile struct {
	// path is without links, named is as the configuration names it.
	path, named string
	File
	values map[string]any
}

// containerdFiles returns the files that containerd loads, in the order in which it does
// (cmd/containerd/server/config: LoadConfig, resolveImports). A missing file is left out,
// but for the main one.
//
// containerd's own list, imports of "config dump", is of no use: 1.x prints it in random
// order, and from 2.2 on it names /etc/containerd/conf.d/*.toml even if nothing imports
// that.
func (h Host) containerdFiles(main string) (all []containerdFile, err error) {
	pending := []string{main}
	for len(pending) > 0 {
		named := pending[0]
		pending = pending[1:]
		if slices.ContainsFunc(all, func(f containerdFile) bool { return f.named == named }) {
			continue
		}
		f, target, err := h.readTarget(named)
		if err != nil {
			return nil, err
		}
		if !f.Exists && named != main {
			continue
		}
		values, err := edit.DecodeTOML(f.Data)
		if err != nil {
			return nil, inFile(target, err)
		}
		loaded := containerdFile{target, named, f, values}
		all = append(all, loaded)
		for _, pattern := range loaded.importedPaths() {
			if !strings.Contains(pattern, "*") {
				pending = append(pending, pattern)
				continue
			}
			names, err := fs.Glob(h.FS, fsPath(pattern))
			if err != nil {
				return nil, inFile(target, err)
			}
			for _, name := range names {
				pending = append(pending, "/"+name)
			}
		}
	}
	return all, nil
}

// importedPaths returns the absolute paths and patterns that the file imports.
func (f containerdFile) importedPaths() []string {
	all := stringList(f.values["imports"])
	for i, pattern := range all {
		if all[i] = path.Clean(pattern); !path.IsAbs(pattern) {
			all[i] = path.Join(path.Dir(f.named), pattern)
		}
	}
	return all
}

// importsFile reports whether a file is one of the imports.
func (f containerdFile) importsFile(name string) bool {
	return slices.ContainsFunc(f.importedPaths(), func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return pattern == name || ok && err == nil && strings.Contains(pattern, "*")
	})
}

// criPlanner plans a runtime class of containerd's CRI plugin.
type criPlanner struct {
	*planner
	// files are those that containerd loads, main is the first of them.
	files []containerdFile
	main  containerdFile
	// version is the format version of the main file.
	version int
	// dump is the whole configuration in the version that containerd prints, cri the
	// plugin's part of it.
	dump, cri map[string]any
}

// planContainerd plans the runtime class berth. From containerd 2.0 on the class is in a
// drop-in. Before 2.0 the class is in the file that sets the plugin: there a file replaces
// the whole table of each plugin that it mentions (1.7, services/server/config, mergeConfig:
// "Replace entire sections instead of merging map's values"), so a drop-in would discard
// the admin's settings.
func planContainerd(h Host, o Options, record *Record) (Plan, error) {
	if err := h.checkInstalled("containerd", "containerd", "/etc/containerd"); err != nil {
		return Plan{}, err
	}
	c := criPlanner{planner: newPlanner(h, "containerd", o, record)}
	if err := c.planRuntimeScript(); err != nil {
		return Plan{}, err
	}
	err := c.readConfig()
	if err == nil && c.mergesTables() {
		err = c.planDropIn()
	} else if err == nil {
		err = c.planEdit()
	}
	if err != nil {
		return Plan{}, err
	}
	if len(c.plan.Changes) > 0 {
		c.plan.Apply = RestartCommand("containerd")
	}
	return c.finish(), nil
}

// readConfig reads the configuration and refuses what can't be edited.
func (c *criPlanner) readConfig() (err error) {
	if c.files, err = c.host.containerdFiles(c.host.containerdMain()); err != nil {
		return err
	}
	c.main = c.files[0]
	if c.host.Refusal != "" {
		return fmt.Errorf("containerd refuses %s as it is: %s", c.main.path, c.host.Refusal)
	}
	if c.dump, err = edit.DecodeTOML([]byte(c.host.Dump)); err != nil {
		return fmt.Errorf("containerd config dump: %w", err)
	}
	if slices.ContainsFunc(stringList(c.dump["disabled_plugins"]), func(p string) bool { return strings.HasSuffix(p, "cri") }) {
		return fmt.Errorf("%s %w: docker and ctr --runc-binary need nothing here", c.main.path, ErrNoCRI)
	}
	c.cri = findCRI(c.dump)
	version, named := c.main.values["version"].(int64)
	containerd := ParseVersion(c.host.Version)
	switch empty := len(c.main.values) == 0; {
	case empty && !containerd.Known:
		return fmt.Errorf("%s says nothing, and containerd's version isn't known: write version = 2 or 3 into it", c.main.path)
	case empty && containerd.Before("2.0"):
		c.version = 2
	case empty:
		c.version = 3
	case !named || version < 2:
		return fmt.Errorf("%s is of version 1, and berth edits 2 and 3: bring it to one of these (containerd config migrate shows how)", c.main.path)
	case version > 3:
		return fmt.Errorf("%s is of version %d; 2 and 3 are known", c.main.path, version)
	default:
		c.version = int(version)
	}
	return nil
}

// mergesTables reports whether containerd merges the tables of several files key by key.
func (c *criPlanner) mergesTables() bool {
	v := ParseVersion(c.host.Version)
	return v.AtLeast("2.0") || !v.Known && c.version == 3
}

// containerdDropIn returns the path of berth's drop-in for a main file.
func containerdDropIn(main string) string { return path.Join(path.Dir(main), "conf.d", "berth.toml") }

// planDropIn plans a file of berth's own, and an import of it in the main file if no file
// imports it. Without imports containerd reads no drop-in directory, in 2.2 and later
// neither: their default value of imports is printed but not followed.
func (c *criPlanner) planDropIn() error {
	text := []byte(c.fileHeader() + fmt.Sprintf("version = %d\n", c.version))
	var err error
	for _, s := range c.runtimeSettings() {
		if text, _, err = (edit.TOML{}).Set(text, s.value, s.path...); err != nil {
			return err
		}
	}
	name := containerdDropIn(c.main.path)
	if err := c.planOwnFile(name, string(text)); err != nil {
		return err
	}
	var settings []setting
	if len(c.main.values) == 0 {
		settings = append(settings, setting{[]string{"version"}, c.version})
	}
	if !slices.ContainsFunc(c.files, func(f containerdFile) bool { return f.importsFile(name) }) {
		list, err := edit.TOML{}.Appended(c.main.Data, name, "imports")
		if err != nil {
			return inFile(c.main.path, err)
		}
		settings = append(settings, setting{[]string{"imports"}, list})
	}
	if err := c.planSettings(c.main.path, tomlFormat, settings); err != nil {
		return err
	}
	c.plan.Check = c.newCheck(name, text)
	return nil
}

// planEdit plans values in the last file that sets the plugin, or in the main one.
func (c *criPlanner) planEdit() error {
	file := c.main
	for _, f := range c.files {
		if innerTable(f.values, criPlugin(c.version)...) != nil {
			file = f
		}
	}
	var settings []setting
	if len(file.values) == 0 {
		settings = append(settings, setting{[]string{"version"}, c.version})
	}
	runtimes := append(criPlugin(c.version), "containerd", "runtimes")
	if innerTable(file.values, runtimes...) == nil {
		// A table of runtimes replaces containerd's default one.
		for _, name := range slices.Sorted(maps.Keys(innerTable(c.cri, "containerd", "runtimes"))) {
			if name != Name {
				settings = append(settings, setting{append(slices.Clone(runtimes), name, "runtime_type"), runcShim})
			}
		}
	}
	settings = append(settings, c.runtimeSettings()...)
	if err := c.planSettings(file.path, tomlFormat, settings); err != nil {
		return err
	}
	if change := c.plan.findChange(c.host, file.path); change != nil {
		c.plan.Check = c.newCheck(file.path, change.After.Data)
	}
	return nil
}
