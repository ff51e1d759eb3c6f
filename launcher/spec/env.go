package spec

import (
	"slices"
	"strings"
)

// Names says whether one of the entries "NAME=VALUE" is of that name.
func Names(env []string, name string) bool { return index(env, name) >= 0 }

func index(env []string, name string) int {
	return slices.IndexFunc(env, func(kv string) bool {
		rest, ok := strings.CutPrefix(kv, name)
		return ok && strings.HasPrefix(rest, "=")
	})
}

// Set returns the environment with an entry in the place of the one of its name.
func Set(env []string, kv string) []string {
	name, _, _ := strings.Cut(kv, "=")
	env = slices.Clone(env)
	if i := index(env, name); i >= 0 {
		env[i] = kv
		return env
	}
	return append(env, kv)
}
