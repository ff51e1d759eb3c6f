package edits

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ErrConflict means that two edits set the same node, mount, variable, limit, annotation or rule
// list to different values.
var ErrConflict = errors.New("contradicting edits")

// Merge joins edits to one, in their order. Equal parts are joined; different values for the same
// thing are an error that Is [ErrConflict]. Removing and adding the same thing is no conflict:
// removals are applied first. All reasons are kept.
func Merge(all ...Edits) (Edits, error) {
	var m Edits
	for _, e := range all {
		if err := m.mergeFrom(e); err != nil {
			return Edits{}, fmt.Errorf("merge edits: %w", err)
		}
	}
	return m, nil
}

func (e *Edits) mergeFrom(o Edits) error {
	var errs [9]error
	e.Nodes, errs[0] = mergeByKey(e.Nodes, o.Nodes, func(n Node) string { return "node " + path.Clean(n.Path) })
	e.Mounts, errs[1] = mergeByKey(e.Mounts, o.Mounts, func(m specs.Mount) string { return "mount " + path.Clean(m.Destination) })
	e.Rlimits, errs[2] = mergeByKey(e.Rlimits, o.Rlimits, func(l specs.POSIXRlimit) string { return "limit " + l.Type })
	e.Env, errs[3] = mergeMaps("variable", e.Env, o.Env)
	e.Annotations, errs[4] = mergeMaps("annotation", e.Annotations, o.Annotations)
	e.NetDevices, errs[7] = mergeMaps("network device", e.NetDevices, o.NetDevices)
	if e.Rules == nil {
		e.Rules = slices.Clone(o.Rules)
	} else if o.Rules != nil && !slices.Equal(e.Rules, o.Rules) {
		errs[5] = fmt.Errorf("%w for the device rules", ErrConflict)
	}
	e.RemoveNodes = mergeSets(e.RemoveNodes, o.RemoveNodes)
	e.RemoveMounts = mergeSets(e.RemoveMounts, o.RemoveMounts)
	e.UnsetEnv = mergeSets(e.UnsetEnv, o.UnsetEnv)
	e.DropCapabilities = mergeSets(e.DropCapabilities, o.DropCapabilities)
	e.MaskedPaths = mergeSets(e.MaskedPaths, o.MaskedPaths)
	e.ReadonlyPaths = mergeSets(e.ReadonlyPaths, o.ReadonlyPaths)
	e.GIDs = mergeSets(e.GIDs, o.GIDs)
	e.Calls = mergeSets(e.Calls, o.Calls)
	e.RDMALinks = mergeSets(e.RDMALinks, o.RDMALinks)
	e.RDMAInterfaces = mergeSets(e.RDMAInterfaces, o.RDMAInterfaces)
	if e.Shm != "" && o.Shm != "" && e.Shm != o.Shm {
		errs[8] = fmt.Errorf("%w for the size of /dev/shm", ErrConflict)
	}
	e.Shm = cmp.Or(e.Shm, o.Shm)
	e.RemoveHooks = mergeSets(e.RemoveHooks, o.RemoveHooks)
	e.Reasons = append(e.Reasons, o.Reasons...)
	for _, h := range o.Hooks {
		if !slices.ContainsFunc(e.Hooks, func(k Hook) bool { return reflect.DeepEqual(h, k) }) {
			e.Hooks = append(e.Hooks, h)
		}
	}
	for _, name := range e.UnsetEnv {
		if _, ok := e.Env[name]; ok {
			errs[6] = fmt.Errorf("%w for variable %s", ErrConflict, name)
		}
	}
	return errors.Join(errs[:]...)
}

// mergeByKey takes time in proportion to what it joins: a container of many slices has
// hundreds of nodes.
func mergeByKey[T any](a, b []T, key func(T) string) ([]T, error) {
	if len(b) == 0 {
		return a, nil
	}
	all := slices.Clone(a)
	first := make(map[string]int, len(a)+len(b))
	for i, v := range all {
		first[key(v)] = i
	}
	for _, v := range b {
		k := key(v)
		i, known := first[k]
		switch {
		case !known:
			first[k] = len(all)
			all = append(all, v)
		case !reflect.DeepEqual(all[i], v):
			return nil, fmt.Errorf("%w for %s", ErrConflict, k)
		}
	}
	return all, nil
}

func mergeMaps(what string, a, b map[string]string) (map[string]string, error) {
	if len(b) == 0 {
		return a, nil
	}
	all := maps.Clone(a)
	if all == nil {
		all = make(map[string]string, len(b))
	}
	for _, k := range slices.Sorted(maps.Keys(b)) {
		if v, ok := all[k]; ok && v != b[k] {
			return nil, fmt.Errorf("%w for %s %s", ErrConflict, what, k)
		}
		all[k] = b[k]
	}
	return all, nil
}

func mergeSets[T comparable](a, b []T) []T {
	if len(b) == 0 {
		return a
	}
	all := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// Validate returns an error for edits that can't be written into a spec: relative paths, unknown
// types and stages, names of variables that aren't, doubles that contradict.
func (e Edits) Validate() error {
	for _, n := range e.Nodes {
		if err := n.checkNode(); err != nil {
			return err
		}
	}
	for _, r := range e.Rules {
		if r.Access == "" || strings.Trim(r.Access, "rwm") != "" || !slices.Contains([]string{"", "a", "b", "c"}, r.Type) {
			return fmt.Errorf("device rule %q of type %q: unknown access or type", r.Access, r.Type)
		}
	}
	for _, m := range e.Mounts {
		if !path.IsAbs(m.Destination) {
			return fmt.Errorf("mount %q: destination isn't absolute", m.Destination)
		}
	}
	for _, name := range e.Calls {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return fmt.Errorf("system call %q: no call has such a name", name)
		}
	}
	if strings.Trim(e.Shm, "0123456789%") != "" {
		return fmt.Errorf("size of /dev/shm %q isn't a number", e.Shm)
	}
	for _, p := range slices.Concat(e.MaskedPaths, e.ReadonlyPaths) {
		if !path.IsAbs(p) {
			return fmt.Errorf("masked or read-only path %q isn't absolute", p)
		}
	}
	for name, value := range e.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("variable %q can't be set", name)
		}
	}
	for _, h := range e.Hooks {
		if h.Stage.hookList(&specs.Hooks{}) == nil || !path.IsAbs(h.Path) {
			return fmt.Errorf("hook %q of stage %q: unknown stage or relative path", h.Path, h.Stage)
		}
	}
	var doubles Edits
	return doubles.mergeFrom(e)
}

func (n Node) checkNode() error {
	switch {
	case !path.IsAbs(n.Path):
		return fmt.Errorf("node %q: path isn't absolute", n.Path)
	case n.Type != "c" && n.Type != "b":
		return fmt.Errorf("node %s: unknown type %q", n.Path, n.Type)
	case n.Major < 0 || n.Minor < 0:
		return fmt.Errorf("node %s: device %d:%d", n.Path, n.Major, n.Minor)
	case strings.Trim(n.Access, "rwm") != "":
		return fmt.Errorf("node %s: unknown access %q", n.Path, n.Access)
	}
	return nil
}
