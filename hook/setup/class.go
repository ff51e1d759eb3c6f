package setup

import (
	"maps"
	"slices"
	"strings"
)

// wants are the values that make the runtime.
func (c *cri) wants() []want {
	at := func(words ...string) []string { return append(plugin(c.version), words...) }
	var all []want
	add := func(value any, words ...string) { all = append(all, want{at(words...), value}) }
	if cdi, is := c.said["enable_cdi"].(bool); is && !cdi {
		add(true, "enable_cdi")
	}
	if c.options.Default {
		add(Name, "containerd", "default_runtime_name")
	}
	base := c.base()
	add(runcShim, "containerd", "runtimes", Name, "runtime_type")
	for _, key := range slices.Sorted(maps.Keys(base)) {
		if telling(key, base[key]) {
			add(base[key], "containerd", "runtimes", Name, key)
		}
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		add(with(list(base[key]), passed()[key]...), "containerd", "runtimes", Name, key)
	}
	options := table(base, "options")
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if telling(key, options[key]) {
			add(options[key], "containerd", "runtimes", Name, "options", key)
		}
	}
	add(c.options.Runtime, "containerd", "runtimes", Name, "options", "BinaryName")
	return append(all, c.takeOver(at)...)
}

// takeOver points a runtime nvidia at berth.
func (c *cri) takeOver(at func(...string) []string) (all []want) {
	nvidia := table(c.said, "containerd", "runtimes", "nvidia")
	if nvidia == nil || nvidia["runtime_type"] != runcShim {
		return nil
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		all = append(all, want{at("containerd", "runtimes", "nvidia", key), with(list(nvidia[key]), passed()[key]...)})
	}
	return append(all, want{at("containerd", "runtimes", "nvidia", "options", "BinaryName"), c.options.Runtime})
}

// base is the runtime that berth's is like: the default one, with its cgroup driver and
// all, or that of runc where the default one is of another kind. It stays the same while
// berth itself is the default.
func (c *cri) base() map[string]any {
	runtimes := table(c.said, "containerd", "runtimes")
	name, _ := table(c.said, "containerd")["default_runtime_name"].(string)
	for _, name := range []string{c.record.Base, name, "runc"} {
		if base := table(runtimes, name); name != Name && base["runtime_type"] == runcShim {
			c.record.Base = name
			return base
		}
	}
	return nil
}

// telling says that a key of a runtime is worth repeating: it isn't as it is of itself,
// and it isn't one that berth sets or that older shims had.
func telling(key string, value any) bool {
	own := []string{"runtime_type", "pod_annotations", "container_annotations", "options", "BinaryName"}
	gone := []string{"runtime_path", "runtime_engine", "runtime_root"}
	if slices.Contains(own, key) || slices.Contains(gone, key) || key == "sandboxer" && value == "podsandbox" {
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

func table(values map[string]any, path ...string) map[string]any {
	for _, key := range path {
		values, _ = values[key].(map[string]any)
	}
	return values
}

func list(value any) (words []string) {
	all, _ := value.([]any)
	for _, v := range all {
		if word, is := v.(string); is {
			words = append(words, word)
		}
	}
	return words
}

// with is a list of patterns that has these, or one that all but those with a slash match.
func with(words []string, more ...string) []string {
	words = slices.Clone(words)
	for _, word := range more {
		if !slices.Contains(words, word) && (!slices.Contains(words, "*") || strings.Contains(word, "/")) {
			words = append(words, word)
		}
	}
	return words
}
