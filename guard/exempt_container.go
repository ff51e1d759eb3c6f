package guard

import "github.com/berth-gpu/berth/isolation/cgroup"

// FindContainer reports whether a cgroup belongs to a running container of root's engines, and whether that container may
// open accelerators without a lease: the admin exempts it, or the guard is disabled. Each call reads the state of all
// containers. A key of exemptions that can't be read is an error.
func (g Guard) FindContainer(path string) (found, exempt bool, err error) {
	all, err := g.listRunning()
	if err != nil {
		return false, false, err
	}
	for _, c := range all {
		if c.cgroup == "/" || !cgroup.IsWithin(path, c.cgroup) {
			continue
		}
		if spec := readBundleSpec(c.Bundle); spec != nil && !g.Disabled {
			exempt, err = g.IsExempt(spec, c.Bundle)
		}
		return true, exempt || g.Disabled, err
	}
	return false, false, nil
}
