package spec

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxEnvLine bounds a line in bytes; the kernel's limit for an entry is lower
// (MAX_ARG_STRLEN).
const maxEnvLine = 1 << 20

// ParseEnvFile parses a file of docker's --env-file. Each line is NAME=VALUE, without quotes or
// expansion, or NAME alone. The value of a NAME alone comes from lookup; the line is skipped if lookup
// returns false. Without a lookup it becomes "NAME=". Empty lines and lines that begin with # are
// skipped.
func ParseEnvFile(r io.Reader, lookup func(string) (string, bool)) ([]string, error) {
	var entries []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEnvLine)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		entry, ok, err := parseEnvLine(line, lookup)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			entries = append(entries, entry)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return entries, nil
}

func parseEnvLine(line string, lookup func(string) (string, bool)) (entry string, ok bool, err error) {
	line = strings.TrimLeft(line, " \t")
	if line == "" || strings.HasPrefix(line, "#") {
		return "", false, nil
	}
	name, value, has := strings.Cut(line, "=")
	switch {
	case !utf8.ValidString(line) || strings.ContainsRune(line, 0):
		return "", false, errors.New("not text")
	case !has:
		name = strings.TrimRightFunc(name, unicode.IsSpace)
	}
	switch {
	case name == "":
		return "", false, fmt.Errorf("%q has no name before the =", line)
	case strings.ContainsFunc(name, unicode.IsSpace):
		return "", false, fmt.Errorf("the name %q has white space in it", name)
	case has:
		return name + "=" + value, true, nil
	case lookup == nil:
		return name + "=", true, nil
	}
	value, ok = lookup(name)
	return name + "=" + value, ok, nil
}

// HasVariable reports whether an environment has a variable of that name.
func HasVariable(env []string, name string) bool { return indexVariable(env, name) >= 0 }

func indexVariable(env []string, name string) int {
	return slices.IndexFunc(env, func(kv string) bool {
		rest, ok := strings.CutPrefix(kv, name)
		return ok && strings.HasPrefix(rest, "=")
	})
}

// SetVariable returns a copy of the environment in which the entry kv, "NAME=VALUE", replaces
// the variable of its name or is appended.
func SetVariable(env []string, kv string) []string {
	name, _, _ := strings.Cut(kv, "=")
	env = slices.Clone(env)
	if i := indexVariable(env, name); i >= 0 {
		env[i] = kv
		return env
	}
	return append(env, kv)
}

// defaultPath is PATH unless the image or the options set it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func buildEnvironment(c Container) []string {
	set := map[string]string{"PATH": defaultPath, "HOME": c.User.Home, "HOSTNAME": c.Hostname}
	if c.Terminal {
		set["TERM"] = "xterm"
	}
	var order []string // of the names in c.Env, then of the others
	named := map[string]bool{}
	for _, kv := range c.Env {
		k, v, _ := strings.Cut(kv, "=")
		if !named[k] {
			named[k] = true
			order = append(order, k)
		}
		set[k] = v
	}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if !named[k] {
			order = append(order, k)
		}
	}
	env := make([]string, 0, len(order))
	for _, k := range order {
		env = append(env, k+"="+set[k])
	}
	return env
}

// Getenv returns the value that a variable will have in the container.
func Getenv(c Container, name string) string {
	for _, kv := range buildEnvironment(c) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// IsEnvEntry reports whether text is "NAME=VALUE" as an environment can have it.
func IsEnvEntry(text string) bool {
	name, _, ok := strings.Cut(text, "=")
	return ok && name != "" && !strings.ContainsRune(text, 0)
}
