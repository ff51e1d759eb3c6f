package devices

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// preparedRules are rules in the form in which a cgroup takes them: a loaded program on version 2, a
// list on version 1.
type preparedRules struct {
	version cgroup.Version
	rules   []edits.Rule
	list    list
	program loaded
}

func prepareRules(v cgroup.Version, rules []edits.Rule) (w preparedRules, err error) {
	w = preparedRules{version: v, rules: rules}
	if v == cgroup.V1 {
		w.list, err = reduceRules(rules)
		return w, err
	}
	p, err := Compile(rules)
	if err != nil {
		return w, err
	}
	w.program, err = p.loadProgram(outerName)
	return w, err
}

func (w preparedRules) Close() error {
	if w.version == cgroup.V1 {
		return nil
	}
	return w.program.Close()
}

// isInPlace reports whether the cgroup has exactly these rules.
func (w preparedRules) isInPlace(d *os.File) (bool, error) {
	if w.version == cgroup.V1 {
		have, err := readList(d.Name())
		return err == nil && have.findDifference(w.list) == "", err
	}
	ids, flags, err := queryPrograms(int(d.Fd()))
	if err != nil || len(ids) != 1 || flags&unix.BPF_F_ALLOW_MULTI == 0 {
		return false, err
	}
	if slices.Contains(ids, w.program.id) {
		return true, nil
	}
	there, err := openProgram(ids[0])
	if err != nil {
		return false, err
	}
	return there.tag == w.program.tag, there.Close()
}

func (w preparedRules) buildRules(d *os.File) error {
	if w.version == cgroup.V1 {
		return writeList(d.Name(), w.rules)
	}
	ids, flags, err := queryPrograms(int(d.Fd()))
	if err != nil {
		return err
	}
	if len(ids) == 1 && flags&unix.BPF_F_ALLOW_MULTI == 0 {
		// A program that children may replace (BPF_F_ALLOW_OVERRIDE), or that forbids programs in
		// children (no flag), can't stay on an outer cgroup.
		if err := w.program.detachOthers(int(d.Fd()), ids); err != nil {
			return err
		}
	}
	return w.program.replacePrograms(int(d.Fd()))
}
