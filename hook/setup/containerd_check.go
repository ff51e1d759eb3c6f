package setup

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

// newCheck has containerd load its configuration with one file as it shall be. Only
// berth's part of what containerd prints may differ from what it printed before.
func (c *criPlanner) newCheck(name string, text []byte) *Check {
	containerd := c.host.findProgram("containerd")
	if containerd == "" || len(c.plan.Changes) == 0 {
		return nil
	}
	main := c.main.Data
	if change := c.plan.findChange(c.host, c.main.path); change != nil {
		main = change.After.Data
	}
	imports := slices.DeleteFunc(c.main.importedPaths(), func(pattern string) bool { return pattern == name })
	if name != c.main.path {
		imports = append(imports, Dir+"/changed.toml")
	}
	after, _, err := edit.TOML{}.Set(main, imports, "imports")
	if err != nil {
		return nil // imports can't be edited, so the plan doesn't either
	}
	return &Check{
		Command: []string{containerd, "--config", Dir + "/config.toml", "config", "dump"},
		After:   map[string][]byte{"config.toml": after, "changed.toml": text},
		Verify: func(dump string) error {
			got, err := edit.DecodeTOML([]byte(dump))
			if err != nil {
				return fmt.Errorf("containerd config dump: %w", err)
			}
			return c.compareConfig(got)
		},
	}
}

// compareConfig compares the configuration that containerd would have with the present one.
func (c *criPlanner) compareConfig(got map[string]any) error {
	cri := findCRI(got)
	if innerTable(cri, "containerd", "runtimes", Name, "options")["BinaryName"] != c.options.Runtime {
		return fmt.Errorf("another file says otherwise of the runtime %s", Name)
	}
	if byDefault := innerTable(cri, "containerd")["default_runtime_name"]; c.options.Default && byDefault != Name {
		return fmt.Errorf("another file makes %v the default runtime", byDefault)
	}
	before, after := withoutBerth(c.dump), withoutBerth(got)
	if !reflect.DeepEqual(before, after) {
		return fmt.Errorf("more than berth's part would change: %s", findDifference(before, after, ""))
	}
	return nil
}

// withoutBerth returns a configuration without what berth may change: its runtime,
// NVIDIA's runtime, the name of the default runtime, CDI, imports. Values that equal their
// default are left out, because versions of containerd differ in whether they print them.
func withoutBerth(dump map[string]any) map[string]any {
	dump = copyTable(dump)
	delete(dump, "imports")
	cri := findCRI(dump)
	delete(cri, "enable_cdi")
	delete(innerTable(cri, "containerd"), "default_runtime_name")
	runtimes := innerTable(cri, "containerd", "runtimes")
	delete(runtimes, Name)
	delete(runtimes, "nvidia")
	removeDefaults(dump)
	return dump
}

func copyTable(values map[string]any) map[string]any {
	values = maps.Clone(values)
	for key, value := range values {
		if inner, ok := value.(map[string]any); ok {
			values[key] = copyTable(inner)
		}
	}
	return values
}

// removeDefaults removes empty and zero values.
func removeDefaults(values map[string]any) {
	for key, value := range values {
		inner, isTable := value.(map[string]any)
		if isTable {
			removeDefaults(inner)
		}
		list, isList := value.([]any)
		if isTable && len(inner) == 0 || isList && len(list) == 0 || value == "" || value == false || value == int64(0) {
			delete(values, key)
		}
	}
}

// findDifference names a key whose values differ.
func findDifference(a, b map[string]any, prefix string) string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	for _, key := range keys {
		x, isTable := a[key].(map[string]any)
		y, isTable2 := b[key].(map[string]any)
		switch {
		case reflect.DeepEqual(a[key], b[key]):
		case isTable && isTable2:
			return findDifference(x, y, prefix+key+".")
		default:
			return prefix + key
		}
	}
	return prefix
}
