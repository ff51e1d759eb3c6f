package spec

import (
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/spell"
)

// ParseVolume parses "SRC:DST[:OPTION,…]": a bind mount of a file or directory of the host. SRC must
// exist. DST is absolute, and is created if it doesn't exist.
//
// Options are rw (the default), ro, bind, rbind (the default), nosuid, nodev, noexec, and the
// propagations private, rprivate (the default), slave, rslave, shared, rshared. Docker's z and
// Z are ignored, because berth sets no SELinux labels, and so are cached, delegated and
// consistent, which are for macOS.
func ParseVolume(s string) (specs.Mount, error) {
	parts := strings.Split(s, ":")
	switch {
	case len(parts) == 1 && path.IsAbs(s):
		return specs.Mount{}, fmt.Errorf("volume %q is not SRC:DST[:OPTIONS]; for an empty directory in memory: --tmpfs %s", s, s)
	case len(parts) > 1 && parts[0] != "" && !strings.ContainsAny(parts[0], "./"):
		return specs.Mount{}, fmt.Errorf("volume %q: berth has no volumes with names; bind a directory of the host: -v ./%s", s, s)
	}
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return specs.Mount{}, fmt.Errorf("volume %q is not SRC:DST[:OPTIONS]", s)
	}
	dst := path.Clean(parts[1])
	if !path.IsAbs(dst) || dst == "/" {
		return specs.Mount{}, fmt.Errorf("volume %q: %s is not an absolute path below / in the container", s, parts[1])
	}
	src, err := filepath.Abs(parts[0])
	if err != nil {
		return specs.Mount{}, fmt.Errorf("volume %q: %w", s, err)
	}
	if err := checkSource(src); err != nil {
		return specs.Mount{}, fmt.Errorf("volume %q: %w", s, err)
	}
	var given []string
	if len(parts) == 3 {
		given = strings.Split(parts[2], ",")
	}
	options, err := bindOptions(given)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("volume %q: %w", s, err)
	}
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: options}, nil
}

var errUnknownOption = errors.New("unknown option")

func bindOptions(given []string) ([]string, error) {
	bind, propagation := "rbind", "rprivate"
	var rest []string
	for _, o := range given {
		switch o {
		case "bind", "rbind":
			bind = o
		case "private", "rprivate", "slave", "rslave", "shared", "rshared":
			propagation = o
		case "rw", "ro", "nosuid", "nodev", "noexec":
			rest = append(rest, o)
		case "z", "Z", "cached", "delegated", "consistent":
		default:
			return nil, fmt.Errorf("%w %q: there are ro, rw, bind, rbind, nosuid, nodev, noexec, [r]private, [r]slave, [r]shared", errUnknownOption, o)
		}
	}
	if slices.Contains(rest, "ro") && slices.Contains(rest, "rw") {
		return nil, fmt.Errorf("both ro and rw")
	}
	return append([]string{bind, propagation}, rest...), nil
}

// ParseMount reads docker's --mount: "type=bind,src=/data,dst=/data,readonly" or
// "type=tmpfs,dst=/scratch,tmpfs-size=1g", quoted as CSV. The source of a bind mount must
// exist.
func ParseMount(s string) (specs.Mount, error) {
	m, err := parseMount(s)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("--mount %s: %w", s, err)
	}
	return m, nil
}

// mountFlag has the values of a --mount by key. A key without a value is "true".
type mountFlag map[string]string

// mountKeys maps docker's keys to the keys of mountFlag.
func mountKeys() map[string]string {
	return map[string]string{
		"type": "type", "src": "src", "source": "src", "dst": "dst", "destination": "dst", "target": "dst",
		"readonly": "readonly", "ro": "readonly", "bind-propagation": "bind-propagation",
		"bind-nonrecursive": "bind-nonrecursive", "bind-recursive": "bind-recursive", "consistency": "consistency",
		"tmpfs-size": "tmpfs-size", "tmpfs-mode": "tmpfs-mode",
	}
}

func parseMount(s string) (specs.Mount, error) {
	words, err := parseMountFlag(s)
	if err != nil {
		return specs.Mount{}, err
	}
	dst, err := parseDestination(words["dst"])
	if err != nil {
		return specs.Mount{}, err
	}
	switch kind := words["type"]; kind {
	case "bind":
		return words.parseBind(dst)
	case "tmpfs":
		return words.parseTmpfs(dst)
	case "", "volume":
		return specs.Mount{}, errors.New("berth has no volumes with names; type=bind,src=DIR,dst=… binds a directory of the host, type=tmpfs,dst=… is empty memory")
	default:
		return specs.Mount{}, fmt.Errorf("type %q is not known%s: there are bind and tmpfs", kind, spell.Suggestion(kind, "bind", "tmpfs"))
	}
}

func parseMountFlag(s string) (mountFlag, error) {
	fields, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return nil, errors.New("not a list of KEY=VALUE with commas between")
	}
	words, keys := mountFlag{}, mountKeys()
	for _, f := range fields {
		given, value, has := strings.Cut(f, "=")
		key := keys[strings.ToLower(given)]
		switch {
		case strings.HasPrefix(given, "volume-"):
			return nil, fmt.Errorf("%s is of volumes, which berth has none of; type=bind,src=DIR,dst=… binds a directory of the host", given)
		case key == "":
			return nil, fmt.Errorf("key %q is not known%s: there are type, src, dst, readonly, bind-propagation, bind-recursive, tmpfs-size and tmpfs-mode", given, spell.Suggestion(strings.ToLower(given), slices.Sorted(maps.Keys(keys))...))
		case !has && key != "readonly" && key != "bind-nonrecursive":
			return nil, fmt.Errorf("%s has no value", given)
		case !has:
			value = "true"
		}
		if before, twice := words[key]; twice && before != value {
			return nil, fmt.Errorf("%s is given twice: %s and %s", key, before, value)
		}
		words[key] = value
	}
	return words, nil
}

// parseDestination returns a mount's destination without "." and "..".
func parseDestination(dst string) (string, error) {
	clean := path.Clean(dst)
	switch {
	case dst == "":
		return "", errors.New("no dst, which says where in the container")
	case !path.IsAbs(clean) || clean == "/" || strings.ContainsRune(dst, 0):
		return "", fmt.Errorf("%s is not an absolute path below / in the container", dst)
	}
	return clean, nil
}

func (w mountFlag) parseBind(dst string) (specs.Mount, error) {
	for _, key := range []string{"tmpfs-size", "tmpfs-mode"} {
		if w[key] != "" {
			return specs.Mount{}, fmt.Errorf("%s is for type=tmpfs", key)
		}
	}
	if w["src"] == "" {
		return specs.Mount{}, errors.New("no src, which says what of the host")
	}
	src, err := filepath.Abs(w["src"])
	if err != nil {
		return specs.Mount{}, err
	}
	if err := checkSource(src); err != nil {
		return specs.Mount{}, err
	}
	recursive, err := w.bindOption()
	if err != nil {
		return specs.Mount{}, err
	}
	given := []string{recursive}
	if p := w["bind-propagation"]; p != "" {
		if !slices.Contains([]string{"private", "rprivate", "slave", "rslave", "shared", "rshared"}, p) {
			return specs.Mount{}, fmt.Errorf("bind-propagation %q is none of [r]private, [r]slave, [r]shared", p)
		}
		given = append(given, p)
	}
	readonly, err := w.boolValue("readonly")
	if err != nil {
		return specs.Mount{}, err
	}
	if readonly {
		given = append(given, "ro")
	}
	options, err := bindOptions(given)
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: options}, err
}

func (w mountFlag) bindOption() (string, error) {
	alone, err := w.boolValue("bind-nonrecursive")
	if err != nil {
		return "", err
	}
	switch how := w["bind-recursive"]; how {
	case "", "enabled", "writable":
		if alone {
			return "bind", nil
		}
		return "rbind", nil
	case "disabled":
		return "bind", nil
	default:
		return "", fmt.Errorf("bind-recursive %q is none of enabled, disabled, writable", how)
	}
}

func (w mountFlag) boolValue(key string) (bool, error) {
	if w[key] == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(w[key])
	if err != nil {
		return false, fmt.Errorf("%s %q is neither true nor false", key, w[key])
	}
	return on, nil
}

func (w mountFlag) parseTmpfs(dst string) (specs.Mount, error) {
	for _, key := range []string{"src", "bind-propagation", "bind-recursive", "bind-nonrecursive"} {
		if w[key] != "" {
			return specs.Mount{}, fmt.Errorf("%s is for type=bind", key)
		}
	}
	var given []string
	if v := w["tmpfs-size"]; v != "" {
		given = append(given, "size="+v)
	}
	if v := w["tmpfs-mode"]; v != "" {
		given = append(given, "mode="+v)
	}
	readonly, err := w.boolValue("readonly")
	if err != nil {
		return specs.Mount{}, err
	}
	if readonly {
		given = append(given, "ro")
	}
	options, err := tmpfsOptions(given)
	return specs.Mount{Destination: dst, Type: "tmpfs", Source: "tmpfs", Options: options}, err
}

// ParseTmpfs reads docker's --tmpfs: "/scratch" or "/scratch:size=1g,mode=1777,exec". Without
// a size the kernel limits it to half of the machine's memory.
func ParseTmpfs(s string) (specs.Mount, error) {
	at, words, _ := strings.Cut(s, ":")
	dst, err := parseDestination(at)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("--tmpfs %s: %w", s, err)
	}
	var given []string
	if words != "" {
		given = strings.Split(words, ",")
	}
	options, err := tmpfsOptions(given)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("--tmpfs %s: %w", s, err)
	}
	return specs.Mount{Destination: dst, Type: "tmpfs", Source: "tmpfs", Options: options}, nil
}

// tmpfsOptions returns docker's default options, replaced by those that are given.
func tmpfsOptions(given []string) ([]string, error) {
	opposite := map[string]string{
		"nosuid": "suid", "suid": "nosuid", "nodev": "dev", "noexec": "exec", "exec": "noexec", "rw": "ro", "ro": "rw",
	}
	options := []string{"nosuid", "nodev", "noexec"}
	moded := false
	for _, o := range given {
		if o == "dev" {
			return nil, errors.New("dev: device nodes don't work on it; a task's devices come with its lease")
		}
		key, value, has := strings.Cut(o, "=")
		switch {
		case !has && opposite[o] != "":
			if slices.Contains(given, opposite[o]) {
				return nil, fmt.Errorf("both %s and %s", o, opposite[o])
			}
			options = slices.DeleteFunc(options, func(was string) bool { return was == o || was == opposite[o] })
			options = append(options, o)
			continue
		case !has:
			return nil, unknownTmpfsOption(o)
		}
		text, err := formatTmpfsOption(key, value)
		if err != nil {
			return nil, err
		}
		options, moded = append(options, text), moded || key == "mode"
	}
	if !moded {
		options = append(options, "mode=1777")
	}
	return options, nil
}

func unknownTmpfsOption(o string) error {
	return fmt.Errorf("%w %q: there are size=, mode=, uid=, gid=, nr_inodes=, ro, rw, exec, noexec, suid, nosuid, nodev", errUnknownOption, o)
}

// formatTmpfsOption checks an option with a value, and returns it in the kernel's form.
func formatTmpfsOption(key, value string) (string, error) {
	switch key {
	case "mode":
		n, err := strconv.ParseUint(value, 8, 32)
		if err != nil || n > 0o7777 {
			return "", fmt.Errorf("mode %q is not an octal number such as 1777", value)
		}
		return "mode=" + strconv.FormatUint(n, 8), nil
	case "uid", "gid", "nr_inodes":
		if _, err := strconv.ParseUint(value, 10, 31); err != nil {
			return "", fmt.Errorf("%s %q is not a number", key, value)
		}
		return key + "=" + value, nil
	case "size":
		if n, err := strconv.ParseUint(strings.TrimSuffix(value, "%"), 10, 8); err == nil && strings.HasSuffix(value, "%") && n <= 100 {
			return "size=" + value, nil // of the memory
		}
		n, err := ParseSize(value)
		if err != nil {
			return "", fmt.Errorf("size %w", err)
		}
		return "size=" + strconv.FormatInt(n, 10), nil
	}
	return "", unknownTmpfsOption(key + "=" + value)
}
