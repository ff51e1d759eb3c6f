package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// specDifference says in words in what the specs of two tasks differ, system call
// filters left aside.
func specDifference(t *testing.T, a, b Container) string {
	t.Helper()
	one, two := plainSpec(t, a), plainSpec(t, b)
	var all []string
	walk("", one, two, &all)
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func plainSpec(t *testing.T, container Container) (v any) {
	t.Helper()
	spec := New(container)
	spec.Linux.Seccomp = nil
	delete(spec.Annotations, "run.oci.seccomp_bpf_data")
	data, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func walk(at string, a, b any, all *[]string) {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			walkMaps(at, x, y, all)
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			walkLists(at, x, y, all)
			return
		}
	}
	switch {
	case fmt.Sprint(a) == fmt.Sprint(b):
	case b == nil && fmt.Sprint(a) != "true" && !isText(a):
		*all = append(*all, at+": absent")
	default:
		*all = append(*all, at+": "+quoteValue(a)+" -> "+quoteValue(b))
	}
}

func isText(v any) bool { _, ok := v.(string); return ok }

func walkMaps(at string, a, b map[string]any, all *[]string) {
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	for k := range keys {
		walk(strings.TrimPrefix(at+"."+k, "."), a[k], b[k], all)
	}
}

func walkLists(at string, a, b []any, all *[]string) {
	switch {
	case strings.HasSuffix(at, "options") && fmt.Sprint(a) == fmt.Sprint(b):
	case strings.HasSuffix(at, "options"):
		*all = append(*all, fmt.Sprintf("%s: %d entries", at, len(b)))
	case len(a) != len(b):
		*all = append(*all, fmt.Sprintf("%s: %d -> %d entries", at, len(a), len(b)))
	default:
		for i := range a {
			walk(fmt.Sprintf("%s[%d]", at, i), a[i], b[i], all)
		}
	}
}

func quoteValue(v any) string {
	switch x := v.(type) {
	case nil:
		return "absent"
	case float64:
		return fmt.Sprintf("%.0f", x)
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(x)) {
			parts = append(parts, k+": "+quoteValue(x[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(v)
}
