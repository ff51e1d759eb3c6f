package setup

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/tomledit"
)

// The places of containerd's configuration.
const (
	containerdConfig = "/etc/containerd/config.toml"
	containerdUnit   = "containerd.service"
)

var errNoCRI = errors.New("disables the CRI plugin, and only that reads runtimes")

// runcShim is the kind of runtime that takes the path of a program.
const runcShim = "io.containerd.runc.v2"

// passed are the annotations that shall reach the runtime, by key: those of pods, and
// those of containers. A star matches no slash.
func passed() map[string][]string {
	return map[string][]string{"pod_annotations": {"berth.*", "berth.gpus/*"}, "container_annotations": {"berth.*"}}
}

// plugin is the table of the CRI plugin, which versions of the file call differently.
func plugin(version int) []string {
	if version == 2 {
		return []string{"plugins", "io.containerd.grpc.v1.cri"}
	}
	return []string{"plugins", "io.containerd.cri.v1.runtime"}
}

// Containerd plans a runtime class berth of containerd's CRI plugin. From containerd 2.0
// on it is in a drop-in. Before, a file that sets anything of a plugin replaces all that
// other files say of it: there the file is edited that counts. record is what was kept
// the last time, nil if nothing was.
func Containerd(h Host, o Options, record *Record) (Plan, error) {
	if err := h.installed("containerd", []string{"containerd"}, []string{"/etc/containerd"}); err != nil {
		return Plan{}, err
	}
	c := cri{builder: newBuilder(h, "containerd", o, record), main: h.containerdMain()}
	if err := c.runtime(); err != nil {
		return Plan{}, err
	}
	if err := c.read(); err != nil {
		return Plan{}, err
	}
	var err error
	if c.dropIns() {
		err = c.dropIn()
	} else {
		err = c.edit()
	}
	if err != nil {
		return Plan{}, err
	}
	if len(c.plan.Changes) > 0 {
		c.plan.Apply = restart("containerd")
	}
	return c.done(), nil
}

// DumpCommand is the call of containerd's that says what its whole configuration is; nil
// if there is no containerd.
func (h Host) DumpCommand() []string {
	containerd := h.find("containerd")
	switch main := h.containerdMain(); {
	case containerd == "":
		return nil
	case h.exists(main):
		return []string{containerd, "--config", main, "config", "dump"}
	}
	return []string{containerd, "config", "default"}
}

// containerdMain is the file that containerd is started with.
func (h Host) containerdMain() string {
	if file, ok := h.unit(containerdUnit).option("--config", "-c"); ok {
		return file
	}
	return containerdConfig
}

// cri plans for containerd's CRI plugin.
type cri struct {
	*builder
	main    string // the configuration that containerd is started with
	file    File
	version int // of that file
	empty   bool
	// dump is the whole configuration, in the version that containerd prints.
	dump map[string]any
	// said is the plugin's part of it.
	said map[string]any
}

// read looks at what there is.
func (c *cri) read() error {
	var err error
	if c.file, c.main, err = c.host.read(c.main); err != nil {
		return err
	}
	values, err := tomledit.Decode(c.file.Data)
	if err != nil {
		return in(c.main, err)
	}
	if c.host.Refusal != "" {
		return fmt.Errorf("containerd refuses %s as it is: %s", c.main, c.host.Refusal)
	}
	if c.dump, err = tomledit.Decode([]byte(c.host.Dump)); err != nil {
		return fmt.Errorf("containerd config dump: %w", err)
	}
	if slices.ContainsFunc(list(c.dump["disabled_plugins"]), func(p string) bool { return strings.HasSuffix(p, "cri") }) {
		return fmt.Errorf("%s %w: docker and ctr --runc-binary need nothing here", c.main, errNoCRI)
	}
	c.said = criTable(c.dump)
	c.empty = len(values) == 0
	version, named := values["version"].(int64)
	switch {
	case c.empty && !parseVersion(c.host.Version).known:
		return fmt.Errorf("%s says nothing, and containerd's version isn't known: write version = 2 or 3 into it", c.main)
	case c.empty && parseVersion(c.host.Version).before("2.0"):
		c.version = 2
	case c.empty:
		c.version = 3
	case !named || version < 2:
		return fmt.Errorf("%s is of version 1, and berth edits 2 and 3: bring it to one of these (containerd config migrate shows how)", c.main)
	case version > 3:
		return fmt.Errorf("%s is of version %d; 2 and 3 are known", c.main, version)
	default:
		c.version = int(version)
	}
	return nil
}

// criTable finds the CRI plugin's part of a configuration of any version.
func criTable(dump map[string]any) map[string]any {
	for _, version := range []int{3, 2} {
		if t := table(dump, plugin(version)...); t != nil {
			return t
		}
	}
	return nil
}

// dropIns says that files are merged key by key.
func (c *cri) dropIns() bool {
	v := parseVersion(c.host.Version)
	return v.known && !v.before("2.0") || !v.known && c.version == 3
}

// dropIn plans a file of berth's own, and that the main one imports it.
func (c *cri) dropIn() error {
	text := []byte(c.header() + fmt.Sprintf("version = %d\n", c.version))
	var err error
	for _, w := range c.wants() {
		if text, err = tomledit.Set(text, asRaw(w.value), w.path...); err != nil {
			return err
		}
	}
	name := path.Join(path.Dir(c.main), "conf.d", "berth.toml")
	if err := c.own(name, string(text)); err != nil {
		return err
	}
	var wants []want
	if c.empty {
		wants = append(wants, want{[]string{"version"}, c.version})
	}
	now, _, err := tomledit.Get(c.file.Data, "imports")
	if err != nil {
		return in(c.main, err)
	}
	if !slices.ContainsFunc(list(c.dump["imports"]), c.covers(name)) {
		wants = append(wants, want{[]string{"imports"}, tomledit.Append(now, name)})
	}
	if err := c.values(c.main, tomlFormat, wants); err != nil {
		return err
	}
	c.plan.Check = c.check(name, text)
	return nil
}

// covers says that an import leads to a file.
func (c *cri) covers(name string) func(string) bool {
	return func(pattern string) bool {
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(c.main), pattern)
		}
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	}
}

// edit plans values in the one file that counts for the plugin.
func (c *cri) edit() error {
	name, file, err := c.counting()
	if err != nil {
		return err
	}
	var wants []want
	if c.empty && name == c.main {
		wants = append(wants, want{[]string{"version"}, c.version})
	}
	at := append(plugin(c.version), "containerd", "runtimes")
	if !tomledit.Has(file.Data, at...) {
		// A table of runtimes replaces the one that containerd has of itself.
		for name := range table(c.said, "containerd", "runtimes") {
			if name != Name {
				wants = append(wants, want{append(slices.Clone(at), name, "runtime_type"), runcShim})
			}
		}
	}
	wants = append(wants, c.wants()...)
	if err := c.values(name, tomlFormat, wants); err != nil {
		return err
	}
	for _, change := range c.plan.Changes {
		if change.Path == name {
			c.plan.Check = c.check(name, change.After.Data)
		}
	}
	return nil
}

// counting is the last file that sets anything of the plugin, or the main one.
func (c *cri) counting() (string, File, error) {
	name, file := c.main, c.file
	for _, imported := range list(c.dump["imports"]) {
		if imported == c.main || strings.ContainsAny(imported, "*?[") {
			continue
		}
		f, target, err := c.host.read(imported)
		if err != nil {
			return "", File{}, err
		}
		if tomledit.Has(f.Data, plugin(c.version)...) {
			name, file = target, f
		}
	}
	return name, file, nil
}
