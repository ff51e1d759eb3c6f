package devices

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// narrowName is the name of the program that Deny adds, as bpftool shows it.
const narrowName = "berth_narrow"

// AllowsAll reports whether the list allows every device.
func AllowsAll(rules []edits.Rule) bool {
	return len(rules) > 0 && rules[0].Allow && MatchesAll(rules[0])
}

// ReadRules returns the device rules of a cgroup of version 1, either "deny all" followed by allowances,
// or the single rule "allow all". The kernel doesn't list denials after "allow all".
func ReadRules(h cgroup.Hierarchy, path string) ([]edits.Rule, error) {
	dir, err := h.Dir(path)
	if err != nil {
		return nil, err
	}
	have, err := readList(dir)
	if err != nil {
		return nil, fmt.Errorf("read device rules of cgroup %s: %w", path, err)
	}
	all := []edits.Rule{{Allow: have.all, Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"}}
	if have.all {
		return all, nil
	}
	for _, e := range have.entries {
		all = append(all, edits.Rule{Allow: true, Type: e.kind, Major: e.major, Minor: e.minor, Access: e.access.String()})
	}
	return all, nil
}

// Replace replaces the device rules of the cgroup at path. Unlike [Apply] it doesn't add [Defaults].
func Replace(h cgroup.Hierarchy, path string, rules []edits.Rule) error {
	return setRules(h, path, rules)
}

// IsWithin reports whether the rules have of a cgroup of version 1 allow nothing beyond rules and
// the defaults that runtimes add.
func IsWithin(have, rules []edits.Rule) (bool, error) {
	is, err := reduceRules(have)
	if err != nil {
		return false, err
	}
	may, err := reduceRules(outerRules(rules))
	return err == nil && (may.all || !is.all && len(is.subtract(may)) == 0), err
}

// Deny denies devices to the cgroup at path and keeps its other rules. It is idempotent. On version
// 2 it adds a program beside those of the runtime and of systemd, and replaces the program of an
// earlier Deny. systemd keeps the program at a daemon-reload. The last rule that matches a device
// decides, so denied can contain exceptions as allow rules. On version 1 the cgroup must allow all
// devices ([AllowsAll]), and denied must contain only deny rules.
func Deny(h cgroup.Hierarchy, path string, denied []edits.Rule) (err error) {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if h.Version == cgroup.V1 {
		for _, r := range denied {
			err = errors.Join(err, writeChange(dir, "deny", Entry(r)))
		}
	} else {
		err = addProgram(dir, denied)
	}
	if err != nil {
		return fmt.Errorf("deny devices to cgroup %s: %w", path, err)
	}
	return nil
}

// Undeny removes the program that [Deny] has added to a cgroup of version 2.
func Undeny(h cgroup.Hierarchy, path string) (err error) {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	ids, _, err := queryPrograms(int(d.Fd()))
	if errors.Is(err, unix.EPERM) {
		return nil // without the right to attach programs, Deny has attached none
	}
	if err == nil {
		var former []uint32
		if _, former, err = (loaded{}).findDenials(ids); err == nil {
			err = loaded{}.detachOthers(int(d.Fd()), former)
		}
	}
	if err != nil {
		return fmt.Errorf("no longer deny devices to cgroup %s: %w", path, err)
	}
	return nil
}

// IsDenied reports whether the program of [Deny] with exactly these rules is attached to a cgroup of
// version 2.
func IsDenied(h cgroup.Hierarchy, path string, denied []edits.Rule) (is bool, err error) {
	dir, err := h.Dir(path)
	if err != nil {
		return false, err
	}
	err = withDenials(dir, denied, func(d *os.File, p loaded) error {
		ids, _, err := queryPrograms(int(d.Fd()))
		if err == nil {
			var former []uint32
			is, former, err = p.findDenials(ids)
			is = is && len(former) == 0
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read device programs of cgroup %s: %w", path, err)
	}
	return is, nil
}

func addProgram(dir string, denied []edits.Rule) error {
	return withDenials(dir, denied, func(d *os.File, p loaded) error {
		ids, flags, err := queryPrograms(int(d.Fd()))
		if err != nil {
			return err
		}
		there, former, err := p.findDenials(ids)
		if err != nil {
			return err
		}
		if !there {
			if len(ids) > 0 && flags&unix.BPF_F_ALLOW_MULTI == 0 {
				return errors.New("it has a device program that allows no second one")
			}
			if err := p.attachTo(int(d.Fd()), unix.BPF_F_ALLOW_MULTI, 0); err != nil {
				return explainError(err)
			}
		}
		return p.detachOthers(int(d.Fd()), former)
	})
}

// withDenials loads the program that denies these devices and allows all others.
func withDenials(dir string, denied []edits.Rule, use func(*os.File, loaded) error) error {
	allowAll := edits.Rule{Allow: true, Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"}
	return withProgram(dir, append([]edits.Rule{allowAll}, denied...), narrowName, use)
}

// findDenials reports whether this program is attached, and lists the other programs that [Deny] has
// attached. Programs that are detached meanwhile are ignored.
func (l loaded) findDenials(ids []uint32) (there bool, former []uint32, err error) {
	for _, id := range ids {
		other, err := openProgram(id)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return false, nil, err
		}
		switch {
		case other.name != narrowName:
		case other.tag == l.tag && !there:
			there = true
		default:
			former = append(former, id)
		}
		if err := other.Close(); err != nil {
			return false, nil, err
		}
	}
	return there, former, nil
}
