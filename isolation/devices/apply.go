package devices

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// programName is the name of the program that [Apply] attaches, as bpftool shows it.
const programName = "berth_devices"

// Apply replaces the device rules of the cgroup at path by these rules followed by [Defaults]. It is
// idempotent. Errors name the cgroup and the rule.
//
// On version 2 the programs of the cgroup itself, which are the runtime's and systemd's, are
// replaced by one program: the first is replaced atomically, then the others are detached. At each
// moment a device can only be opened if the old rules or the new rules allow it. Programs of parent
// cgroups stay in force.
//
// On version 1 denials are written before allowances, and unchanged entries are not rewritten. The
// kernel doesn't narrow a cgroup that allows all while it has children (EINVAL), lets a cgroup have
// only what its parent has (EPERM), and grants an open only what one rule alone allows. Version 1
// can't express a list that denies part of a wildcard; Apply then returns an error and changes
// nothing.
func Apply(h cgroup.Hierarchy, path string, rules []edits.Rule) error {
	return setRules(h, path, slices.Concat(rules, Defaults()))
}

func setRules(h cgroup.Hierarchy, path string, rules []edits.Rule) (err error) {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if h.Version == cgroup.V1 {
		err = writeList(dir, rules)
	} else {
		err = replaceAll(dir, rules)
	}
	if err != nil {
		return fmt.Errorf("set device rules of cgroup %s: %w", path, err)
	}
	return nil
}

func replaceAll(dir string, rules []edits.Rule) error {
	return withProgram(dir, rules, programName, func(d *os.File, l loaded) error { return l.replacePrograms(int(d.Fd())) })
}

// withProgram loads a program with this name for these rules, and calls use with the open directory
// of the cgroup. Both are closed afterwards.
func withProgram(dir string, rules []edits.Rule, name string, use func(*os.File, loaded) error) (err error) {
	p, err := Compile(rules)
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	l, err := p.loadProgram(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return use(d, l)
}

// replacePrograms makes this program the only one of the cgroup. It retries if another process
// changes the programs meanwhile.
func (l loaded) replacePrograms(dir int) error {
	var err error
	for range 10 {
		if err = l.tryReplace(dir); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return err
}

func (l loaded) tryReplace(dir int) error {
	ids, flags, err := queryPrograms(dir)
	if err != nil {
		return err
	}
	if slices.Contains(ids, l.id) {
		return l.detachOthers(dir, ids)
	}
	if len(ids) == 0 || flags&unix.BPF_F_ALLOW_MULTI == 0 {
		// Without that flag there is one program at most, and attaching replaces it; the
		// flags have to stay as they are.
		if len(ids) == 0 {
			flags = unix.BPF_F_ALLOW_MULTI
		}
		return explainError(l.attachTo(dir, flags, 0))
	}
	old, err := openProgram(ids[0])
	if err != nil {
		return err
	}
	err = explainError(l.attachTo(dir, flags|unix.BPF_F_REPLACE, old.fd))
	if err = errors.Join(err, old.Close()); err != nil {
		return err
	}
	return l.detachOthers(dir, ids[1:])
}

func explainError(err error) error {
	if err != nil {
		return fmt.Errorf("attach device program: %w", err)
	}
	return nil
}

// detachOthers detaches all programs of the cgroup except this one. A program that is already gone
// is not an error.
func (l loaded) detachOthers(dir int, ids []uint32) error {
	for _, id := range ids {
		if id == l.id {
			continue
		}
		o, err := openProgram(id)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		err = o.detachFrom(dir)
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		if err = errors.Join(err, o.Close()); err != nil {
			return fmt.Errorf("detach device program %d: %w", id, err)
		}
	}
	return nil
}
