package setup

import (
	"fmt"
	"path"
	"reflect"
	"slices"

	"github.com/berth-gpu/berth/hook/setup/tomledit"
)

// check has containerd read all of its configuration with one file as it shall be, and
// compares what it says with what it said: nothing but berth's part may differ.
func (c *cri) check(name string, text []byte) *Check {
	containerd := c.host.find("containerd")
	if containerd == "" || len(c.plan.Changes) == 0 {
		return nil
	}
	main := c.file.Data
	for _, change := range c.plan.Changes {
		if change.Path == c.main {
			main = change.After.Data
		}
	}
	imports := []string{}
	for _, i := range list(c.dump["imports"]) {
		if !path.IsAbs(i) {
			i = path.Join(path.Dir(c.main), i)
		}
		if i != c.main && i != name {
			imports = append(imports, i)
		}
	}
	if name != c.main { // behind the others, or in its place among them
		imports = append(imports, Dir+"/changed.toml")
	}
	after, err := tomledit.Set(main, tomledit.Text(imports), "imports")
	if err != nil {
		return nil // it stands where it can't be replaced
	}
	return &Check{
		Command: []string{containerd, "--config", Dir + "/config.toml", "config", "dump"},
		After:   map[string][]byte{"config.toml": after, "changed.toml": text},
		Judge: func(dump string) error {
			got, err := tomledit.Decode([]byte(dump))
			if err != nil {
				return fmt.Errorf("containerd config dump: %w", err)
			}
			return c.judge(got)
		},
	}
}

// judge compares what containerd will say with what it says.
func (c *cri) judge(got map[string]any) error {
	said := criTable(got)
	runtimes := table(said, "containerd", "runtimes")
	if table(runtimes, Name, "options")["BinaryName"] != c.options.Runtime {
		return fmt.Errorf("another file says otherwise of the runtime %s", Name)
	}
	if now := table(said, "containerd")["default_runtime_name"]; c.options.Default && now != Name {
		return fmt.Errorf("another file makes %v the default runtime", now)
	}
	before, after := without(c.dump), without(got)
	if !reflect.DeepEqual(before, after) {
		return fmt.Errorf("more than berth's part would change: %s", differing(before, after, ""))
	}
	return nil
}

// without is a configuration without what berth may change: its runtime, that of NVIDIA,
// which one is the default, CDI, imports.
func without(dump map[string]any) map[string]any {
	dump, err := tomledit.Copy(dump)
	if err != nil {
		return nil
	}
	delete(dump, "imports")
	said := criTable(dump)
	delete(said, "enable_cdi")
	if t := table(said, "containerd"); t != nil {
		delete(t, "default_runtime_name")
	}
	if t := table(said, "containerd", "runtimes"); t != nil {
		delete(t, Name)
		delete(t, "nvidia")
	}
	return set(dump)
}

// set is a table without what is as if it weren't there: versions of containerd print
// such values or leave them out.
func set(values map[string]any) map[string]any {
	for key, value := range values {
		inner, is := value.(map[string]any)
		if is {
			set(inner)
		}
		list, isList := value.([]any)
		if is && len(inner) == 0 || isList && len(list) == 0 || value == "" || value == false || value == int64(0) {
			delete(values, key)
		}
	}
	return values
}

// differing names a key that two tables don't share.
func differing(a, b map[string]any, at string) string {
	var keys []string
	for k := range a {
		keys = append(keys, k)
	}
	for k := range b {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		x, inX := a[k].(map[string]any)
		y, inY := b[k].(map[string]any)
		switch {
		case reflect.DeepEqual(a[k], b[k]):
		case inX && inY:
			return differing(x, y, at+k+".")
		default:
			return at + k
		}
	}
	return at
}
