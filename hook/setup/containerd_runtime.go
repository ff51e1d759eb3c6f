package setup

import (
	"maps"
	"slices"
	"strings"
)

// runcShim is the runtime type whose options have the path of a program.
const runcShim = "io.containerd.runc.v2"

// passedAnnotations returns the annotations that reach the runtime, by the key of the
// runtime that lists them. A star matches no slash.
func passedAnnotations() map[string][]string {
	return map[string][]string{"pod_annotations": {"berth.*", "berth.gpus/*"}, "container_annotations": {"berth.*"}}
}

// runtimeSettings returns the values that make up the runtime berth.
func (c *criPlanner) runtimeSettings() []setting {
	at := func(keys ...string) []string { return append(criPlugin(c.version), keys...) }
	var all []setting
	add := func(value any, keys ...string) { all = append(all, setting{at(keys...), value}) }
	if enabled, ok := c.cri["enable_cdi"].(bool); ok && !enabled {
		add(true, "enable_cdi")
	}
	if c.options.Default {
		add(Name, "containerd", "default_runtime_name")
	}
	base := c.baseRuntime()
	add(runcShim, "containerd", "runtimes", Name, "runtime_type")
	for _, key := range slices.Sorted(maps.Keys(base)) {
		if isWorthCopying(key, base[key]) {
			add(base[key], "containerd", "runtimes", Name, key)
		}
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		add(addPatterns(stringList(base[key]), passedAnnotations()[key]...), "containerd", "runtimes", Name, key)
	}
	options := innerTable(base, "options")
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if isWorthCopying(key, options[key]) {
			add(options[key], "containerd", "runtimes", Name, "options", key)
		}
	}
	add(c.options.Runtime, "containerd", "runtimes", Name, "options", "BinaryName")
	// A runtime nvidia is pointed at berth.
	nvidia := innerTable(c.cri, "containerd", "runtimes", "nvidia")
	if nvidia == nil || nvidia["runtime_type"] != runcShim {
		return all
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		add(addPatterns(stringList(nvidia[key]), passedAnnotations()[key]...), "containerd", "runtimes", "nvidia", key)
	}
	add(c.options.Runtime, "containerd", "runtimes", "nvidia", "options", "BinaryName")
	return all
}

// baseRuntime returns the runtime whose settings berth's runtime has, its cgroup driver
// among them: the default runtime, or runc where the default one has no runc shim. The
// record keeps the choice, because berth may be the default one the next time.
func (c *criPlanner) baseRuntime() map[string]any {
	runtimes := innerTable(c.cri, "containerd", "runtimes")
	byDefault, _ := innerTable(c.cri, "containerd")["default_runtime_name"].(string)
	for _, name := range []string{c.record.Base, byDefault, "runc"} {
		if base := innerTable(runtimes, name); name != Name && base["runtime_type"] == runcShim {
			c.record.Base = name
			return base
		}
	}
	return nil
}

// isWorthCopying reports whether a key of a runtime differs from containerd's default and
// is neither one that berth sets nor one that only older shims had.
func isWorthCopying(key string, value any) bool {
	skipped := []string{
		"runtime_type", "pod_annotations", "container_annotations", "options", "BinaryName",
		"runtime_path", "runtime_engine", "runtime_root",
	}
	if slices.Contains(skipped, key) || key == "sandboxer" && value == "podsandbox" {
		return false
	}
	switch v := value.(type) {
	case string:
		return v != ""
	case bool:
		return v
	case int64:
		return v != 0
	case []any:
		return len(v) > 0
	}
	return false
}

// innerTable returns an inner table of decoded values, nil if there is none.
func innerTable(values map[string]any, path ...string) map[string]any {
	for _, key := range path {
		values, _ = values[key].(map[string]any)
	}
	return values
}

// stringList returns the strings of a decoded list.
func stringList(value any) (words []string) {
	all, _ := value.([]any)
	for _, v := range all {
		if word, ok := v.(string); ok {
			words = append(words, word)
		}
	}
	return words
}

// addPatterns adds the patterns that a list lacks. "*" in the list covers those without a
// slash.
func addPatterns(list []string, more ...string) []string {
	list = slices.Clone(list)
	for _, pattern := range more {
		if !slices.Contains(list, pattern) && (!slices.Contains(list, "*") || strings.Contains(pattern, "/")) {
			list = append(list, pattern)
		}
	}
	return list
}
