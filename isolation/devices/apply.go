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

// programName of what [Apply] attaches, as bpftool shows it.
const programName = "berth_devices"

// Apply makes the device rules of the cgroup at path be these, followed by
// [Defaults], whatever they were. Doing it twice is the same as once. Errors name
// cgroup and rule.
//
// On version 2 the programs of the cgroup itself, which are the runtime's and
// systemd's, are replaced by one: the first in a single step, and only then do
// others go, so that at each moment what is open was open before or is open by the
// rules. Programs of the cgroups above hold on.
//
// On version 1 denials come before allowances, and what doesn't change isn't
// touched. The kernel doesn't narrow a cgroup that allows all while it has children
// (EINVAL), lets a cgroup have only what its parent has (EPERM), and grants an open
// only what one rule alone allows. A list with a hole in a wildcard can't be said
// there, and nothing is changed then.
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

// withProgram loads the program of these rules by that name, and calls use with the open
// directory of the cgroup. Both are closed afterwards.
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

// replacePrograms makes the program the only one of the cgroup. Others who change its
// programs meanwhile make it try again.
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

// detachOthers takes off all of the programs but this. One that went by itself is no
// error.
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
